from __future__ import annotations

import json

import pytest

from aep_relay.hub.limits import Limits
from tests.bindings.served import event, serving, settle
from tests.bindings.talk import alive, errors, subscribe


class TestSubscribe:
    async def test_it_is_announced_before_what_it_brings(self) -> None:
        async with serving() as relay:
            await relay.post(event(0), event(1))
            socket = await relay.greeted("consumer")
            socket.say(subscribe("a", from_="all"))
            await settle()
            assert socket.raw() == [b'{"type":"subscribed","id":"a"}', event(0), event(1)]
            await relay.post(event(2))
            assert socket.raw() == [event(2)]

    @pytest.mark.parametrize(
        ("members", "code"),
        [
            ({"filter": None}, "invalid-filter"),
            ({"filter": []}, "invalid-filter"),
            ({"filter": "x"}, "invalid-filter"),
            ({"filter": {"data": 1}}, "invalid-filter"),
            ({"filter": {"time": "x"}}, "invalid-filter"),
            ({"filter": {"seq": 1}}, "invalid-filter"),
            ({"filter": {"Session": "x"}}, "invalid-filter"),
            ({"filter": {"session": []}}, "invalid-filter"),
            ({"filter": {"session": None}}, "invalid-filter"),
            ({"filter": {"severity": {}}}, "invalid-filter"),
            ({"filter": {"severity": {"gte": "loud"}}}, "invalid-filter"),
            ({"filter": {"type": "*"}}, "invalid-filter"),
            ({"filter": {"session": ["x"] * 1001}}, "limit-exceeded"),
            ({"from": None}, "invalid-filter"),
            ({"from": "ALL"}, "invalid-filter"),
            ({"from": {}}, "invalid-filter"),
            ({"from": [{}]}, "invalid-filter"),
            ({"from": [{"session": "s", "seq": -1}]}, "invalid-filter"),
            ({"from": [{"session": "s", "seq": True}]}, "invalid-filter"),
            ({"from": [{"session": "s", "seq": "1"}]}, "invalid-filter"),
            ({"from": [{"session": str(number), "seq": 1} for number in range(501)]}, "limit-exceeded"),
            ({"capture": None}, "invalid-filter"),
            ({"capture": "everything"}, "invalid-filter"),
            ({"capture": 1}, "invalid-filter"),
        ],
    )
    async def test_a_refusal_is_in_band_and_from_the_closed_set(
        self, members: dict[str, object], code: str
    ) -> None:
        async with serving() as relay:
            socket = await relay.greeted("consumer")
            await socket.ask(subscribe("kept"))
            (answer,) = await socket.ask({**subscribe("new"), **members})
            assert (answer["type"], answer["id"], answer["code"]) == ("error", "new", code)
            assert answer["detail"]
            # Nothing of it is there, and the others are undisturbed.
            await relay.post(event())
            assert socket.raw() == [event()]
            assert len(relay.relay.fanout.index.groups) == 1
            assert await alive(socket)

    @pytest.mark.parametrize(
        "text",
        [
            b'{"type":"subscribe","id":"new","filter":{"session":"a","session":"b"}}',
            b'{"type":"subscribe","id":"new","filter":{},"filter":{"session":"b"}}',
            b'{"type":"subscribe","id":"new","from":[{"session":"a","seq":1,"seq":2}]}',
            b'{"type":"subscribe","id":"new","filter":' + b"[" * 300 + b"]" * 300 + b"}",
            b'{"type":"subscribe","id":"new","from":[{"session":"a","seq":1' + b"0" * 500 + b"}]}",
        ],
    )
    async def test_so_is_that_of_a_frame_whose_text_is_refused(self, text: bytes) -> None:
        async with serving() as relay:
            socket = await relay.greeted("consumer")
            (answer,) = await socket.ask(text)
            assert (answer["type"], answer.get("id"), answer["code"]) == ("error", "new", "invalid-filter")
            assert await alive(socket)

    @pytest.mark.parametrize("id_", [None, "", 7, ["a"], "x" * 257])
    async def test_an_id_that_is_none_is_not_repeated(self, id_: object) -> None:
        async with serving() as relay:
            socket = await relay.greeted("consumer")
            (answer,) = await socket.ask(subscribe(id_))
            assert (answer["type"], answer.get("id"), answer["code"]) == ("error", None, "invalid-filter")
            assert await alive(socket)

    async def test_an_emitter_may_not(self) -> None:
        async with serving() as relay:
            socket = await relay.greeted("emitter")
            (answer,) = await socket.ask(subscribe())
            assert (answer["type"], answer["id"], answer["code"]) == ("error", "a", "unauthorized")
            await relay.post(event())
            assert await alive(socket)

    async def test_no_more_than_the_limit(self) -> None:
        async with serving(Limits(max_subscriptions=2, max_from_positions=1)) as relay:
            socket = await relay.greeted("consumer")
            answers = await socket.ask(subscribe("a"), subscribe("b"), subscribe("c"), subscribe("a"))
            assert [answer["type"] for answer in answers] == [
                "subscribed",
                "subscribed",
                "error",
                "subscribed",
            ]
            assert (answers[2]["id"], answers[2]["code"]) == ("c", "limit-exceeded")
            assert "max_subscriptions" in answers[2]["detail"]
            points = [{"session": "s", "seq": 0}, {"session": "t", "seq": 0}]
            (answer,) = await socket.ask(subscribe("b", from_=points))
            assert (answer["id"], answer["code"]) == ("b", "limit-exceeded")
            assert "max_from_positions" in answer["detail"]

    async def test_a_refused_one_leaves_the_old_one_of_its_id(self) -> None:
        async with serving() as relay:
            socket = await relay.greeted("consumer")
            await socket.ask(subscribe("a", filter={"session": "s"}))
            await socket.ask(subscribe("a", filter={"session": []}))
            await relay.post(event(0, "t"), event(0, "s"))
            assert socket.raw() == [event(0, "s")]

    async def test_a_reused_id_replaces_and_leaves_nothing(self) -> None:
        async with serving() as relay:
            await relay.post(event(0, "s"), event(0, "t"))
            socket = await relay.greeted("consumer")
            await socket.ask(subscribe("a", filter={"session": "s"}, from_="all"))
            socket.say(subscribe("a", filter={"session": "t"}, from_="all"))
            await settle()
            assert socket.raw() == [b'{"type":"subscribed","id":"a"}', event(0, "t")]
            await relay.post(event(1, "s"), event(1, "t"))
            assert socket.raw() == [event(1, "t")]
            assert len(relay.relay.fanout.index.groups) == 1
            await socket.ask({"type": "unsubscribe", "id": "a"})
            assert relay.relay.fanout.index.groups == {}

    async def test_several_at_once_bring_each_event_once_and_at_the_richest_ceiling(self) -> None:
        async with serving() as relay:
            socket = await relay.greeted("consumer")
            await socket.ask(
                subscribe("a", filter={"session": "s"}, capture="none"),
                subscribe("b", filter={"type": "tool.*"}, capture="full"),
                subscribe("c", filter={"type": "run.*"}),
            )
            full = event(0, "s", capture="full", data={"x": 1})
            await relay.post(
                full, event(1, "s", "error.raised", data={"message": "x"}), event(0, "t", "run.started")
            )
            first, second, third = socket.raw()
            assert first == full
            assert json.loads(second)["capture"] == "none"
            assert third == event(0, "t", "run.started")

    async def test_unsubscribe_is_acknowledged_whether_there_was_one_or_not(self) -> None:
        async with serving() as relay:
            socket = await relay.greeted("consumer")
            await socket.ask(subscribe("a"))
            for id_ in ("a", "a", "never"):
                assert await socket.ask({"type": "unsubscribe", "id": id_}) == [
                    {"type": "unsubscribed", "id": id_}
                ]
            await relay.post(event())
            assert socket.raw() == []

    async def test_exhaustion_is_said_per_subscription_and_session(self) -> None:
        async with serving(Limits(buffer_events=2)) as relay:
            await relay.post(*(event(seq, epoch=5) for seq in range(4)))
            socket = await relay.greeted("consumer")
            points = [{"session": "s", "epoch": 5, "seq": 0}]
            answers = await socket.ask(subscribe("x", from_=points))
            assert answers[1] == {
                "type": "replay-exhausted",
                "sub": "x",
                "session": "s",
                "earliest": {"epoch": 5, "seq": 2},
            }
            assert [answer["seq"] for answer in answers[2:]] == [2, 3]

    async def test_what_is_sent_meanwhile_follows_the_replay_without_gap(self) -> None:
        async with serving() as relay:
            await relay.post(*(event(seq) for seq in range(2000)))
            socket = await relay.greeted("consumer", capacity_bytes=1_000)
            socket.say(subscribe("a", from_="all"))
            await settle()
            for seq in range(2000, 2100):
                await relay.post(event(seq))
            socket.wire.capacity_bytes = None
            await settle()
            assert [answer.get("seq") for answer in socket.heard()] == [None, *range(2100)]


class TestRoster:
    async def test_one_entry_for_each_claim_declarations_verbatim(self) -> None:
        async with serving() as relay:
            control = {"accepts": ["control.cancel"], "ack_window_ms": 5}
            one = await relay.greeted("emitter", "one", {"control": control, "emits": ["tool"]})
            two = await relay.greeted("both", "two")
            await one.ask(event(0, "s"), event(0, "t"), event(1, "s"), event(2, "s", "session.ended"))
            await two.ask(event(0, "s"))
            watcher = await relay.greeted("consumer")
            (roster,) = await watcher.ask({"type": "roster", "id": "r-1"})
            assert (roster["type"], roster["id"]) == ("roster", "r-1")
            declared = {"agent": "one", "instance": "one/1", "control": control, "emits": ["tool"]}
            expected = [
                {"session": "s", **declared},
                {"session": "s", "agent": "two", "instance": "two/1"},
                {"session": "t", **declared},
            ]
            assert sorted(roster["entries"], key=str) == sorted(expected, key=str)
            one.wire.feed_end()
            await settle()
            (roster,) = await watcher.ask({"type": "roster", "id": "r-2"})
            assert roster["entries"] == [expected[1]]

    async def test_nobody_claims_by_anything_but_an_event_of_its_own(self) -> None:
        async with serving() as relay:
            consumer = await relay.greeted("consumer")
            emitter = await relay.greeted("both")
            await consumer.ask(event(0, "s"))
            await relay.post(event(1, "s"))
            routed = event(None, "s", "attention.routed")
            assert await emitter.ask(routed, event(None, None, "agent.idle"), event(0, "s", agent=None)) != []
            assert await emitter.ask({"type": "roster", "id": "r"}) == [
                {"type": "roster", "id": "r", "entries": []}
            ]

    async def test_an_emitter_may_not_ask(self) -> None:
        async with serving() as relay:
            socket = await relay.greeted("emitter")
            (answer,) = await socket.ask({"type": "roster", "id": "r"})
            assert (answer["type"], answer["id"], answer["code"]) == ("error", "r", "unauthorized")
            assert await alive(socket)

    async def test_no_more_claims_than_the_limit(self) -> None:
        async with serving(Limits(max_claims=2)) as relay:
            socket = await relay.greeted()
            answers = await socket.ask(event(0, "a"), event(0, "b"), event(0, "c"), event(1, "a"))
            assert errors(answers) == [("limit-exceeded", "c-0-0")]
            assert relay.relay.stats.received_events == 3
