"""Upstreams that know nothing of chaining: other relays of the protocol, and ones that refuse, stall and close."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from aep_relay.bindings import chained
from aep_relay.upstream.pull import PullLink
from tests.bindings.served import BEARER, TOKEN, settle
from tests.fakes.log import Log
from tests.fakes.turns import prepared as prepared
from tests.fakes.turns import turns as turns
from tests.upstream.net import Net, Node, event, events, heard, ids, net, to, until
from tests.upstream.scripted import ACCEPTED, Answer, Posted, Scripted, Spoken, hello, invalid


@pytest.fixture
def foreign(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every relay of the net takes announcements for what it does not know."""
    monkeypatch.setattr(chained, "of", lambda *_: None)


def greeting(spoken: Spoken, message: Any) -> None:
    """Answers hello, and takes every subscription."""
    if message["type"] == "hello":
        spoken.say(hello())
    elif message["type"] == "subscribe":
        spoken.say({"type": "subscribed", "id": message["id"]})


def scripted(net_: Net, upstream: Scripted, mode: str = "push", **settings: Any) -> Node:
    net_.hosts["hub"] = upstream.serve
    upstream.on_socket = lambda: None
    return Node(net_, "leaf", to("hub", mode, **settings))


def pull(node: Node) -> PullLink:
    (link,) = node.chain.pulls
    return link


@pytest.mark.usefixtures("foreign")
async def test_push_pull_and_control_need_no_extension(autojump_clock: MockClock) -> None:
    async with net() as net_:
        hub = Node(net_, "hub")
        leaf, edge = Node(net_, "leaf", to("hub")), Node(net_, "edge", to("hub", "pull"))
        await until(lambda: leaf.link.state == edge.link.state == "up")
        accepts = {"control": {"accepts": ["control.cancel"]}}
        agent = await leaf.greeted("emitter", "coder", accepts, headers=BEARER)
        agent.say(*events(1))
        await leaf.take(*events(1, 2, session="p"))
        await until(lambda: edge.held() == ids(1) and edge.held("p") == ids(1, 2, session="p"))
        boss = await edge.greeted("consumer", "boss", headers=BEARER)
        boss.say({"type": "subscribe", "id": "w", "filter": {"type": "control.*"}})
        boss.say(event("c1", None, type="control.cancel", agent="boss"))
        assert [frame["id"] for frame in await heard(agent)] == ["c1"]
        agent.say(event("s2", 2, type="control.accepted", cause="c1"))
        assert [frame["id"] for frame in await heard(boss, 2)] == ["c1", "s2"]
        assert hub.relay.feeders.graph() == {"hub1": []}


@pytest.mark.usefixtures("foreign")
async def test_sessions_that_began_meanwhile_are_looked_for(autojump_clock: MockClock) -> None:
    async with net() as net_:
        hub, edge = Node(net_, "hub"), Node(net_, "edge", to("hub", "pull"))
        await hub.take(*events(1, 2))
        await until(lambda: edge.held() == ids(1, 2))
        watching = await edge.greeted("consumer", headers=BEARER)
        watching.say({"type": "subscribe", "id": "w"})
        await settle()
        net_.cut("hub")
        await hub.take(*events(3), *events(1, 2, session="new"))
        net_.mend("hub")
        await until(lambda: edge.held() == ids(1, 2, 3) and edge.held("new") == ids(1, 2, session="new"))
        got = [frame["id"] for frame in watching.heard() if "." in frame["type"]]
        assert sorted(got) == sorted([*ids(3), *ids(1, 2, session="new")])
        (peer,) = [peer for peer in hub.relay.peers.values() if peer.subscriptions]
        assert set(peer.subscriptions) == {"pull", "begun"}
        await until(lambda: set(peer.subscriptions) == {"pull"})
        await hub.take(*events(4))
        assert [frame["id"] for frame in await heard(watching)] == ["s4"]


async def test_what_is_asked_for_first_and_after_a_break(autojump_clock: MockClock) -> None:
    async with net() as net_:
        upstream = Scripted()
        edge = scripted(net_, upstream, "pull", capture="metadata", filter='{"agent": "coder"}')
        await until(lambda: bool(upstream.sockets))
        upstream.sockets[0].on = greeting
        upstream.sockets[0].say(hello())
        await until(lambda: edge.link.state == "up")
        hello_, subscribe = upstream.sockets[0].heard
        assert (hello_["role"], hello_["versions"]) == ("consumer", ["0.1"])
        assert upstream.sockets[0].authorization == f"Bearer {TOKEN}".encode()
        assert subscribe == {
            "type": "subscribe",
            "id": "pull",
            "filter": {"agent": "coder"},
            "from": "all",
            "capture": "metadata",
        }
        upstream.sockets[0].say(
            *events(1, 7), *events(3, session="t", epoch=2), event("a", None, None, type="agent.x")
        )
        await until(lambda: edge.held() == ids(1, 7))
        upstream.sockets[0].close(1001, "restart")
        await until(lambda: len(upstream.sockets) == 2)
        upstream.sockets[1].on = greeting
        upstream.sockets[1].say(hello())
        await until(lambda: len(upstream.sockets[1].heard) >= 3)
        _, resumed, begun = upstream.sockets[1].heard
        assert resumed["from"] == [
            {"session": "s", "epoch": 0, "seq": 7},
            {"session": "t", "epoch": 2, "seq": 3},
        ]
        assert (begun["id"], begun["from"]) == ("begun", "all")


@pytest.mark.parametrize("code", ["invalid-filter", "limit-exceeded"])
async def test_a_refused_replay_is_asked_for_less_and_less(code: str, autojump_clock: MockClock) -> None:
    async with net() as net_:
        upstream = Scripted()
        edge = scripted(net_, upstream, "pull")

        def on(spoken: Spoken, message: Any) -> None:
            if message["type"] == "hello":
                spoken.say(hello())
            elif "from" in message:
                spoken.say({"type": "error", "id": message["id"], "code": code, "detail": "no"})
            else:
                spoken.say({"type": "subscribed", "id": message["id"]})

        await until(lambda: bool(upstream.sockets))
        upstream.sockets[0].on = on
        upstream.sockets[0].say(hello())
        await until(lambda: edge.link.state == "up")
        assert [message.get("from") for message in upstream.sockets[0].heard[1:]] == ["all", None]
        for session in "abcdefgh":
            upstream.sockets[0].say(*events(1, session=session))
        await until(lambda: len(edge.relay.store) == 8)
        upstream.sockets[0].close(1001)
        await until(lambda: len(upstream.sockets) == 2)
        upstream.sockets[1].on = on
        upstream.sockets[1].say(hello())
        await until(lambda: edge.link.state == "up")
        asked = [message.get("from") for message in upstream.sockets[1].heard[1:]]
        sizes = [len(from_) for from_ in asked if isinstance(from_, list)]
        assert sizes == ([8, 4, 2, 1] if code == "limit-exceeded" else [8])
        assert asked[-2:] == ["all", None]


async def test_the_limit_that_a_refusal_names_is_believed(autojump_clock: MockClock) -> None:
    async with net() as net_:
        upstream = Scripted()
        edge = scripted(net_, upstream, "pull")

        def on(spoken: Spoken, message: Any) -> None:
            if message["type"] == "subscribe":
                from_ = message.get("from")
                refused = isinstance(from_, list) and len(from_) > 3
                spoken.say(
                    {"type": "error", "id": "pull", "code": "limit-exceeded", "detail": "at most 3 positions"}
                    if refused
                    else {"type": "subscribed", "id": message["id"]}
                )

        for number in (0, 1, 2):
            await until(lambda: len(upstream.sockets) > number)  # noqa: B023
            upstream.sockets[number].on = on
            upstream.sockets[number].say(hello(replay={}))
            await until(lambda: edge.link.state == "up")
            for session in "abcdefgh":
                upstream.sockets[number].say(*events(number + 1, session=session))
            await until(lambda: edge.held("h") == ids(*range(1, number + 2), session="h"))  # noqa: B023
            upstream.sockets[number].close(1001)
            await until(lambda: edge.link.state != "up")
        sizes = [
            [len(message.get("from", ())) for message in spoken.heard if message["type"] == "subscribe"]
            for spoken in upstream.sockets[:3]
        ]
        assert sizes == [[0], [8, 3], [3]]


async def test_positions_that_the_upstream_says_it_delivered_are_believed(autojump_clock: MockClock) -> None:
    async with net() as net_:
        upstream = Scripted()
        edge = scripted(net_, upstream, "pull")
        await until(lambda: bool(upstream.sockets))
        first = upstream.sockets[0]
        first.on = greeting
        first.say(hello())
        first.say(*events(1, 5))
        await until(lambda: edge.held() == ids(1, 5))
        delivered = [{"sub": "pull", "session": "s", "epoch": 0, "seq": 2}, {"sub": "x"}, 7]
        first.say({"type": "closing", "reason": "restart", "delivered": delivered})
        first.close(1001)
        await until(lambda: len(upstream.sockets) == 2)
        upstream.sockets[1].say(hello())
        await until(lambda: len(upstream.sockets[1].heard) == 2)
        assert upstream.sockets[1].heard[1]["from"] == [{"session": "s", "epoch": 0, "seq": 2}]


@pytest.mark.parametrize(
    "noise",
    [
        b"{",
        b"[]",
        b'{"type":"nonsense","x":[1e999,"\\ud800"]}',
        b'{"type":"replay-exhausted"}',
        b'{"type":"replay-exhausted","sub":"pull","session":"s","earliest":{"epoch":-1,"seq":true}}',
        b'{"type":"closing"}',
        b'{"type":"error"}',
        b'{"type":"aep-relay","relay":7}',
        b'{"type":"subscribed","id":"other"}',
        b'{"aep":"0.1","id":""}',
        b'{"type":"pong"}',
    ],
)
@pytest.mark.parametrize("mode", ["push", "pull"])
async def test_noise_does_no_harm(noise: bytes, mode: str, autojump_clock: MockClock) -> None:
    async with net() as net_:
        upstream = Scripted()
        leaf = scripted(net_, upstream, mode)
        await until(lambda: bool(upstream.sockets))
        spoken = upstream.sockets[0]
        spoken.on = greeting
        spoken.say(hello())
        await until(lambda: leaf.link.state == "up")
        spoken.say(noise)
        if mode == "pull":
            spoken.say(*events(1))
            await until(lambda: leaf.held() == ids(1))
        await trio.sleep(100)
        assert leaf.link.state == "up"
        assert len(upstream.sockets) == 1


@pytest.mark.parametrize(("mode", "which"), [("push", "control"), ("push", "mirror"), ("pull", "pull")])
@pytest.mark.parametrize(
    "text", [b"", b"x", b"{}", b'{"type":"new"}', b'{"type":"pong"}', event("s1", 1)], ids=len
)
async def test_others_have_their_turn_whatever_comes(
    mode: str, which: str, text: bytes, turns: list[None], autojump_clock: MockClock
) -> None:
    async with net() as net_:
        upstream = Scripted()
        leaf = scripted(net_, upstream, mode)
        await until(lambda: bool(upstream.sockets))
        if which == "mirror":
            upstream.sockets[0].say(hello())
            (await leaf.greeted("emitter", "coder", headers=BEARER)).say(*events(1))
            await until(lambda: len(upstream.sockets) == 2)
        spoken = upstream.sockets[-1]
        spoken.on = greeting
        spoken.say(hello())
        await until(lambda: leaf.link.state == "up")
        await settle()
        turns.clear()
        spoken.say(*[text] * 50)
        await settle()
        assert len(turns) >= 50


@pytest.mark.parametrize("ceiling", [None, "metadata"])
async def test_large_ones_are_taken_in_in_steps_and_in_order(
    ceiling: str | None, prepared: list[str], autojump_clock: MockClock
) -> None:
    async with net() as net_:
        upstream = Scripted()
        leaf = scripted(net_, upstream, "pull", capture=ceiling)
        await until(lambda: bool(upstream.sockets))
        spoken = upstream.sockets[0]
        spoken.on = greeting
        spoken.say(hello())
        spoken.say(event("s1", 1), event("s2", 2, data={"text": "x" * 500}), event("s3", 3))
        await until(lambda: leaf.held() == ids(1, 2, 3))
        # What is above the link's ceiling is none that anybody is sent.
        assert prepared == ([] if ceiling else ["s2"])


async def test_others_have_their_turn_however_much_an_upstream_has_delivered(
    turns: list[None], autojump_clock: MockClock
) -> None:
    async with net() as net_:
        upstream = Scripted()
        leaf = scripted(net_, upstream, "pull")
        await until(lambda: bool(upstream.sockets))
        spoken = upstream.sockets[0]
        spoken.on = greeting
        spoken.say(hello())
        await until(lambda: leaf.link.state == "up")
        await settle()
        turns.clear()
        entry = {"sub": "pull", "session": "s", "epoch": 0, "seq": 1}
        spoken.say({"type": "closing", "reason": "shutdown", "delivered": [entry, 1] * 25})
        await settle()
        assert len(turns) >= 50


async def test_others_have_their_turn_whatever_comes_before_hello(
    turns: list[None], autojump_clock: MockClock
) -> None:
    async with net() as net_:
        upstream = Scripted()
        leaf = scripted(net_, upstream)
        await until(lambda: bool(upstream.sockets))
        turns.clear()
        upstream.sockets[0].say(*[b'{"type":"before-hello"}'] * 50, hello())
        await until(lambda: leaf.link.state == "up")
        assert len(turns) >= 50


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        (
            {"type": "error", "code": "version-unsupported", "detail": "0.2 only"},
            "version-unsupported: 0.2 only",
        ),
        ({**hello(), "versions": ["0.2"]}, "chose a version that was not offered"),
        (b"{", "sent something else than a hello"),
    ],
)
async def test_a_hello_that_is_none(said: Any, problem: str, autojump_clock: MockClock) -> None:
    async with net() as net_:
        upstream = Scripted()
        leaf = scripted(net_, upstream)
        await until(lambda: bool(upstream.sockets))
        upstream.sockets[0].say(said)
        await until(lambda: leaf.link.state == "refused")
        assert leaf.link.detail == problem


async def test_a_hello_with_more_than_is_known(autojump_clock: MockClock) -> None:
    async with net() as net_:
        upstream = Scripted()
        leaf = scripted(net_, upstream)
        await until(lambda: bool(upstream.sockets))
        upstream.sockets[0].on = greeting
        upstream.sockets[0].say(
            b'{"type":"before-hello","x":1e999}',
            b'{"type":"hello","versions":["0.1"],"role":"both","capabilities":{"new":[1e999,"\\ud800"]}}',
        )
        await until(lambda: leaf.link.state == "up")


async def test_no_hello_at_all(autojump_clock: MockClock) -> None:
    async with net() as net_:
        leaf = scripted(net_, Scripted())
        await trio.sleep(11)
        assert leaf.link.detail == "no hello within 10 s"


@pytest.mark.parametrize("mode", ["push", "pull"])
@pytest.mark.parametrize(
    ("status", "state"), [(401, "refused"), (413, "refused"), (426, "refused"), (500, "down"), (503, "down")]
)
async def test_an_upstream_that_refuses_the_handshake(
    mode: str, status: int, state: str, autojump_clock: MockClock, log: Log
) -> None:
    async with net() as net_:
        upstream = Scripted()
        leaf = scripted(net_, upstream, mode)
        upstream.on_socket = lambda: (status, b'{"error":"no","detail":"not you"}')
        await leaf.take(*events(1))
        states = set()
        for _ in range(300):
            await trio.sleep(1)
            states.add(leaf.link.state)
        assert states <= {state, "connecting"}
        assert leaf.link.detail == f"HTTP {status}: not you"
        assert upstream.posts == []
        assert len(log.records("upstream down")) > 5
        assert len([record for record in log.records("upstream down") if record["level"] == "warning"]) == 1


@pytest.mark.parametrize("code", [1003, 1007, 1009])
async def test_an_event_that_ends_its_mirror_is_found_by_post(code: int, autojump_clock: MockClock) -> None:
    async with net() as net_:

        def on_post(posted: Posted) -> Answer:
            return (400, invalid()) if "s2" in posted.ids else ACCEPTED

        upstream = Scripted(on_post=on_post)
        leaf = scripted(net_, upstream)

        def on(spoken: Spoken, message: Any) -> None:
            greeting(spoken, message)
            if message.get("id") == "s2":
                spoken.answers_pings = False
                spoken.close(code)

        known = 0

        def script() -> bool:
            nonlocal known
            for spoken in upstream.sockets[known:]:
                spoken.on = on
                spoken.say(hello())
            known = len(upstream.sockets)
            return False

        async def keep_scripting() -> None:
            while True:
                script()
                await trio.sleep(0.01)

        net_.nursery.start_soon(keep_scripting)
        await until(lambda: leaf.link.state == "up")
        agent = await leaf.greeted("emitter", headers=BEARER)
        agent.say(*events(1, 2, 3))
        await until(lambda: {"s1", "s3"} <= set(upstream.accepted), 300)
        (link,) = leaf.chain.pushes
        assert link.refused_events == 1
        agent.say(*events(4))
        await until(
            lambda: "s4" in upstream.accepted or any("s4" in spoken.events() for spoken in upstream.sockets)
        )


async def test_an_emitter_whom_the_upstream_refuses_is_posted_for(
    autojump_clock: MockClock, log: Log
) -> None:
    async with net() as net_:
        upstream = Scripted()
        leaf = scripted(net_, upstream)

        def on(spoken: Spoken, message: Any) -> None:
            if message["type"] == "hello" and message["role"] == "emitter":
                spoken.say({"type": "error", "code": "unauthorized", "detail": "not this agent"})
                spoken.close(1008)

        async def keep_scripting() -> None:
            known = 0
            while True:
                for spoken in upstream.sockets[known:]:
                    spoken.on = on
                    if spoken.heard and spoken.heard[0]["role"] == "emitter":
                        on(spoken, spoken.heard[0])
                    else:
                        spoken.say(hello())
                    known += 1
                await trio.sleep(0.01)

        net_.nursery.start_soon(keep_scripting)
        await until(lambda: leaf.link.state == "up")
        agent = await leaf.greeted("emitter", headers=BEARER)
        agent.say(*events(1, 2))
        await until(lambda: upstream.accepted == ids(1, 2))
        agent.say(*events(3))
        await until(lambda: upstream.accepted == ids(1, 2, 3))
        assert [record["detail"] for record in log.records("mirror down")] == ["unauthorized: not this agent"]


async def test_an_event_that_the_upstream_refuses_in_band_is_counted(
    autojump_clock: MockClock, log: Log
) -> None:
    async with net() as net_:
        upstream = Scripted()
        leaf = scripted(net_, upstream)

        def on(spoken: Spoken, message: Any) -> None:
            if message.get("id") == "s2":
                spoken.say({"type": "error", "code": "invalid-event", "detail": "bad", "cause": "s2"})

        await until(lambda: bool(upstream.sockets))
        upstream.sockets[0].say(hello())
        await until(lambda: leaf.link.state == "up")
        agent = await leaf.greeted("emitter", headers=BEARER)
        agent.say(*events(1, 2, 3))
        await until(lambda: len(upstream.sockets) == 2)
        upstream.sockets[1].on = on
        upstream.sockets[1].say(hello())
        await until(lambda: upstream.sockets[1].events() == ids(1, 2, 3))
        await trio.sleep(1)
        (link,) = leaf.chain.pushes
        assert link.refused_events == 1
        (record,) = log.records("upstream refused an Event")
        assert (record["event_id"], record["detail"]) == ("s2", "invalid-event: bad")


async def test_a_command_that_is_not_for_the_emitter_is_refused(autojump_clock: MockClock) -> None:
    async with net() as net_:
        upstream = Scripted()
        leaf = scripted(net_, upstream)
        await until(lambda: bool(upstream.sockets))
        upstream.sockets[0].say(hello())
        await until(lambda: leaf.link.state == "up")
        accepts = {"control": {"accepts": ["control.cancel"]}}
        agent = await leaf.greeted("emitter", "coder", accepts, headers=BEARER)
        agent.say(*events(1))
        await until(lambda: len(upstream.sockets) == 2)
        spoken = upstream.sockets[1]
        spoken.say(hello())
        await until(lambda: spoken.events() == ids(1))
        spoken.say(event("c1", None, "other", type="control.cancel"), event("c2", None, type="control.pause"))
        spoken.say(event("c3", None, type="control.cancel"), event("x", 9))
        assert [frame["id"] for frame in await heard(agent)] == ["c3"]
        errors = [(m["code"], m["cause"]) for m in spoken.heard if m["type"] == "error"]
        assert errors == [("no-route", "c1"), ("unsupported", "c2")]
        assert leaf.held() == ["s1", "c3"]


async def test_a_mirror_whose_pings_are_not_answered_is_given_up(autojump_clock: MockClock) -> None:
    async with net() as net_:
        upstream = Scripted()
        leaf = scripted(net_, upstream, answer_timeout_seconds=5.0)
        await until(lambda: bool(upstream.sockets))
        upstream.sockets[0].say(hello())
        await until(lambda: leaf.link.state == "up")
        agent = await leaf.greeted("emitter", headers=BEARER)
        agent.say(*events(1))
        await until(lambda: len(upstream.sockets) == 2)
        upstream.sockets[1].answers_pings = False
        upstream.sockets[1].say(hello())
        await until(lambda: len(upstream.sockets) == 3)
        upstream.sockets[2].say(hello())
        await until(lambda: upstream.sockets[2].events() == ids(1))
        (link,) = leaf.chain.pushes
        await until(lambda: link.ledger.unconfirmed_bytes == 0)


async def test_unknown_frames_and_heartbeats(autojump_clock: MockClock) -> None:
    async with net() as net_:
        upstream = Scripted()
        leaf = scripted(net_, upstream)
        await until(lambda: bool(upstream.sockets))
        spoken = upstream.sockets[0]
        spoken.say(hello())
        await until(lambda: leaf.link.state == "up")
        spoken.say({"type": "ping", "t": "x"})
        spoken.say_bytes(bytes((0x89, 2)) + b"hi")
        await until(lambda: {"type": "pong", "t": "x"} in spoken.heard)
        spoken.say_bytes(bytes((0x82, 1)) + b"\0")
        await until(lambda: leaf.link.state == "down")
        assert json.dumps(leaf.link.describe())
        assert "WebSocket protocol" in leaf.link.detail


async def test_losses_without_end_are_not_logged_without_end(autojump_clock: MockClock, log: Log) -> None:
    async with net() as net_:
        upstream = Scripted()
        edge = scripted(net_, upstream, "pull")
        await until(lambda: bool(upstream.sockets))
        spoken = upstream.sockets[0]
        spoken.on = greeting
        spoken.say(hello())
        await until(lambda: edge.link.state == "up")

        async def lose(count: int) -> None:
            before = pull(edge).exhausted_sessions
            for number in range(count):
                earliest = {"epoch": 0, "seq": 7}
                spoken.say(
                    {"type": "replay-exhausted", "sub": "pull", "session": f"s{number}", "earliest": earliest}
                )
            await until(lambda: pull(edge).exhausted_sessions == before + count)

        await lose(50)
        assert len(log.records("upstream has lost Events")) == 10
        await trio.sleep(10)
        await lose(15)
        assert len(log.records("upstream has lost Events")) == 20
        spoken.close(1001)
        await until(lambda: edge.link.state == "down")
        assert [record["records"] for record in log.records("more like this left out")] == [40, 5]
