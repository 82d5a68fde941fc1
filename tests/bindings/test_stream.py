from __future__ import annotations

import json
from urllib.parse import quote

import pytest
import trio

from aep_relay.hub.limits import Limits
from aep_relay.protocol.errors import Refusal
from tests.bindings.served import JSON, Served, Stream, command, event, request, serving, settle

REPLAY = "?from=all&live=0"


def query(**parameters: object) -> str:
    """Return a query string; what is not a string is sent as JSON, ``from_`` as ``from``."""
    pairs = []
    for name, value in parameters.items():
        text = value if isinstance(value, str) else json.dumps(value)
        pairs.append(f"{name.rstrip('_')}={quote(text)}")
    return "?" + "&".join(pairs)


async def test_the_head_and_the_first_bytes_come_at_once() -> None:
    async with serving() as relay:
        stream = await relay.stream()
        assert stream.comments() == ["stream open"]
        assert stream.head is not None
        assert stream.head.headers == {
            "content-type": "text/event-stream",
            "cache-control": "no-cache",
            "x-accel-buffering": "no",
            "transfer-encoding": "chunked",
            "connection": "close",
        }


async def test_live_events_come_as_they_were_sent() -> None:
    async with serving() as relay:
        stream = await relay.stream()
        stream.read()
        spaced = (
            b' { "aep" : "0.1" ,\r\n' + event(1, subject="\N{SNOWMAN}\\\r\n").lstrip(b"{").partition(b",")[2]
        )
        await relay.post(event(0, "a:b", epoch=7))
        await relay.ask("POST", "/events", spaced, JSON)
        first, second = stream.messages()
        assert (first.event, first.id, first.data) == ("tool.requested", "a:b:7:0", event(0, "a:b", epoch=7))
        # A raw line break between tokens is all that is taken away.
        assert (second.id, second.data) == ("s:0:1", spaced.strip().replace(b"\r\n", b""))


@pytest.mark.parametrize(
    ("data", "id_"),
    [
        (event(5, epoch=1_700_000_000_000), "s:1700000000000:5"),
        (event(2**63 - 1, epoch=2**63 - 1), f"s:{2**63 - 1}:{2**63 - 1}"),
        (event(7).replace(b'"seq": 7', b'"seq": 7.0'), "s:0:7"),
        (event(100).replace(b'"seq": 100', b'"seq": 1e2'), "s:0:100"),
        (event(0, "a b\N{SNOWMAN}:1:2"), "a b\N{SNOWMAN}:1:2:0:0"),
        (event(0, "\t "), None),
        (event(None, type_="attention.routed"), None),
        (event(None, None, "agent.idle"), None),
        (event(0, "a\nid: evil"), None),
        (event(0, "a\rb"), None),
        (event(0, "a\0b"), None),
        (event(0, "\r\n\r\ndata: evil"), None),
    ],
)
async def test_only_a_position_that_fits_into_a_line_is_an_id(data: bytes, id_: str | None) -> None:
    async with serving() as relay:
        stream = await relay.stream()
        await relay.post(data)
        (message,) = stream.messages()
        assert (message.id, message.data) == (id_, data)


async def test_commands_carry_no_id() -> None:
    async with serving(token="t") as relay:
        stream = await relay.stream("?access_token=t")
        accepts = {"control": {"accepts": ["control.cancel"]}}
        target = await relay.greeted("emitter", capabilities=accepts, query="?access_token=t")
        await target.ask(event(0), command())
        assert [(message.id, message.data) for message in stream.messages()] == [
            ("s:0:0", event(0)),
            (None, command()),
        ]


class TestFilter:
    async def test_it_is_applied(self) -> None:
        async with serving() as relay:
            wanted = query(filter={"type": ["attention.*", "error.*"], "severity": {"gte": "notice"}})
            stream = await relay.stream(wanted)
            events = [
                event(0),
                event(1, type_="attention.requested"),
                event(2, type_="attention.requested", severity="notice"),
                event(3, type_="error.raised", severity="critical"),
            ]
            await relay.post(*events)
            assert stream.events() == events[2:]

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "null",
            "[]",
            "x",
            "{",
            '{"data":1}',
            '{"type":[]}',
            '{"severity":{}}',
            '{"a":null}',
            '{"a":1,"a":1}',
        ],
    )
    async def test_what_is_none_is_refused(self, text: str) -> None:
        await _refused(query(filter=text), "filter")

    async def test_the_empty_one_matches_all(self) -> None:
        async with serving() as relay:
            stream = await relay.stream(query(filter={}))
            await relay.post(event())
            assert stream.events() == [event()]


async def _refused(target: str, parameter: str, headers: dict[str, str] | None = None) -> None:
    """Check that ``target`` is refused with a 400 that names ``parameter``, and nothing of a stream is sent."""
    async with serving() as relay:
        wire = relay.connect()
        wire.feed(request("GET", f"/stream{target}", None, headers))
        await settle()
        stream = Stream(wire)
        assert stream.text() == b""
        assert stream.head is not None
        assert stream.head.refusal == (400, "invalid-parameter")
        assert stream.head.json["parameter"] == parameter
        assert stream.head.json["detail"].startswith(f"{parameter}: ")
        assert relay.relay.peers == {}
        # It was a request like any other: the connection goes on.
        wire.feed(request("GET", "/healthz"))
        await settle()
        assert wire.take_sent().startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    ("target", "parameter"),
    [
        ("?capture=", "capture"),
        ("?capture=FULL", "capture"),
        ("?capture=1", "capture"),
        ("?capture=none&capture=none", "capture"),
        ("?filter={}&filter={}", "filter"),
        ("?live=false", "live"),
        ("?live=", "live"),
        ("?live=0&live=0", "live"),
        ("?from=", "from"),
        ("?from=ALL", "from"),
        ("?from={}", "from"),
        ('?from=[{"session":"s"}]', "from"),
        ('?from=[{"session":"s","seq":-1}]', "from"),
        ('?from=[{"session":"s","seq":1.5}]', "from"),
        ('?from=[{"session":"s","seq":true}]', "from"),
        ('?from=[{"session":"","seq":1}]', "from"),
        (f'?from=[{{"session":"s","seq":{2**63}}}]', "from"),
        ("?from=all&from=all", "from"),
    ],
)
async def test_malformed_parameters_are_named(target: str, parameter: str) -> None:
    await _refused(target.replace('"', "%22"), parameter)


@pytest.mark.parametrize(
    "last",
    [
        *("s", "s:1", "s:1:x", ":1:1", "s:-1:1", f"s:0:{2**63}", "s:0:1 1", "\xff\xfe:0:1"),
        "s:0:1\r\nlast-event-id: t:0:1",
    ],
)
async def test_a_malformed_last_event_id_is_named(last: str) -> None:
    async with serving() as relay:
        stream = await relay.stream("", {"Last-Event-ID": last})
        stream.text()
        assert stream.head is not None
        assert stream.head.refusal == (400, "invalid-parameter")
        assert stream.head.json["parameter"] == "Last-Event-ID"


async def test_unknown_parameters_are_ignored() -> None:
    async with serving() as relay:
        assert (await relay.stream("?retry=1&Filter=x")).comments() == ["stream open"]


class TestCapture:
    SECRET = event(
        0, type_="tool.requested", capture="full", data={"tool": {"name": "Bash"}, "args": {"x": "y"}}
    )

    @pytest.mark.parametrize("ceiling", ["none", "metadata", "redacted", "full", None])
    async def test_a_ceiling_is_kept_live_and_in_replay(self, ceiling: str | None) -> None:
        async with serving() as relay:
            target = query(from_="all") if ceiling is None else query(from_="all", capture=ceiling)
            live = await relay.stream(target)
            await relay.post(self.SECRET)
            replayed = await relay.stream(target + "&live=0")
            (one,), (other,) = live.events(), replayed.events()
            assert one == other
            found = json.loads(one)
            if ceiling in ("full", None):
                assert one == self.SECRET
            else:
                # No redacting re-emitter: a redacted ceiling on a full Event yields metadata.
                assert found["capture"] == ("none" if ceiling == "none" else "metadata")
                assert found.get("data", {}) == ({} if ceiling == "none" else {"tool": {"name": "Bash"}})

    async def test_the_event_line_names_the_type_whatever_the_ceiling(self) -> None:
        async with serving() as relay:
            stream = await relay.stream(query(capture="none"))
            await relay.post(self.SECRET)
            (message,) = stream.messages()
            assert (message.event, message.id) == ("tool.requested", "s:0:0")


async def _filled(relay: Served, count: int = 4, session: str = "s") -> list[bytes]:
    events = [event(seq, session) for seq in range(count)]
    assert (await relay.post(*events)).json == {"accepted": count}
    return events


class TestReplay:
    async def test_all_is_every_held_session(self) -> None:
        async with serving() as relay:
            held = [*await _filled(relay, session="a"), *await _filled(relay, session="b")]
            stream = await relay.stream("?from=all")
            assert stream.events() == held
            await relay.post(event(9, "a"))
            assert stream.events() == [event(9, "a")]
            late = await relay.stream(query(from_='"all"', live="0"))
            # The session written longest ago comes first.
            assert late.events() == [*held[4:], *held[:4], event(9, "a")]

    async def test_live_0_ends_behind_the_marker(self) -> None:
        async with serving() as relay:
            events = await _filled(relay)
            stream = await relay.stream(REPLAY)
            items = stream.read()
            assert items[0] == "stream open"
            assert items[-1] == "replay-complete"
            assert [item.data for item in items if not isinstance(item, str)] == events
            assert stream.ended
            stream.wire.feed_end()
            await settle()
            assert relay.relay.peers == {}

    async def test_live_1_is_the_default(self) -> None:
        async with serving() as relay:
            stream = await relay.stream("?from=all&live=1")
            await _filled(relay)
            assert len(stream.events()) == 4
            assert not stream.ended

    @pytest.mark.parametrize(
        ("target", "seqs"),
        [
            ("?live=0", []),
            (query(live="0", filter={"session": "s"}), [0, 1, 2, 3]),
            (query(live="0", filter={"session": ["s"], "severity": {"gte": "debug"}}), [0, 1, 2, 3]),
            (query(live="0", filter={"session": ["s", "t"]}), []),
            (query(live="0", filter={"session": "s", "id": "s-0-2"}), [2]),
            (query(live="0", filter={"agent": "tester"}), []),
            (query(live="0", filter={"session": "nobody"}), []),
            (query(live="0", from_=[]), []),
        ],
    )
    async def test_live_0_without_positions(self, target: str, seqs: list[int]) -> None:
        async with serving() as relay:
            await _filled(relay)
            stream = await relay.stream(target)
            items = stream.read()
            assert items[-1] == "replay-complete"
            assert [item.json["seq"] for item in items if not isinstance(item, str)] == seqs
            assert stream.ended

    @pytest.mark.parametrize(
        ("target", "last", "seqs"),
        [
            ([{"session": "s", "epoch": 0, "seq": 1}], None, [2, 3]),
            ([{"session": "s", "seq": 1}], None, [2, 3]),
            ([{"session": "s", "seq": 1e0, "extra": None}], None, [2, 3]),
            ([{"session": "s", "seq": 3}], None, []),
            ([{"session": "s", "seq": 1}, {"session": "t", "seq": 0}], None, [2, 3]),
            ([{"session": "s", "seq": 2}, {"session": "s", "seq": 1}], None, [2, 3]),
            (None, "s:0:1", [2, 3]),
            (None, "s:0:3", []),
            (None, "", []),
            ([{"session": "s", "seq": 2}], "s:0:0", [3]),
            ([{"session": "s", "seq": 2}], "nonsense", [3]),
            ([], "s:0:0", []),
            ("all", "s:0:2", [0, 1, 2, 3]),
        ],
    )
    @pytest.mark.parametrize("live", ["0", "1"])
    async def test_resume(self, target: object, last: str | None, seqs: list[int], live: str) -> None:
        async with serving() as relay:
            await _filled(relay)
            wanted = query(live=live) if target is None else query(live=live, from_=target)
            stream = await relay.stream(wanted, None if last is None else {"Last-Event-ID": last})
            assert [message.json["seq"] for message in stream.messages()] == seqs
            await relay.post(event(4))
            assert [message.json["seq"] for message in stream.messages()] == ([4] if live == "1" else [])

    @pytest.mark.parametrize("session", ["a:b", "a:1:2", ":", "\N{SNOWMAN} x"])
    async def test_last_event_id_is_read_from_the_right(self, session: str) -> None:
        async with serving() as relay:
            events = await _filled(relay, session=session)
            stream = await relay.stream("?from=all&live=0")
            ids = [message.id for message in stream.messages()]
            assert ids[1] is not None
            resumed = await relay.stream("?live=0", {"Last-Event-ID": ids[1].encode().decode("latin-1")})
            assert resumed.events() == events[2:]

    async def test_with_one_session_filtered_last_event_id_counts_as_from(self) -> None:
        async with serving() as relay:
            await _filled(relay)
            wanted = query(live="0", filter={"session": "s"})
            stream = await relay.stream(wanted, {"Last-Event-ID": "s:0:2"})
            assert stream.events() == [event(3)]

    async def test_no_more_positions_than_the_limit(self) -> None:
        async with serving(Limits(max_from_positions=2)) as relay:
            points = [{"session": str(number), "seq": 0} for number in range(3)]
            assert (await relay.stream(query(from_=points[:2]))).comments() == ["stream open"]
            stream = await relay.stream(query(from_=points))
            stream.read()
            assert stream.head is not None
            assert stream.head.refusal == (400, "limit-exceeded")
            assert "max_from_positions" in stream.head.json["detail"]

    async def test_by_default_as_many_positions_as_sessions(self) -> None:
        async with serving(Limits(max_sessions=2)) as relay:
            points = [{"session": str(number), "seq": 0} for number in range(3)]
            stream = await relay.stream(query(from_=points))
            stream.read()
            assert stream.head is not None
            assert stream.head.refusal == (400, "limit-exceeded")

    async def test_what_is_too_much_to_remember_is_refused_before_the_head(self) -> None:
        async with serving(Limits(max_subscription_bytes=64 * 1024)) as relay:
            wanted = query(from_=[{"session": str(number), "seq": 0} for number in range(200)])
            stream = await relay.stream(wanted)
            stream.read()
            assert stream.head is not None
            assert stream.head.refusal == (400, "limit-exceeded")
            assert "max_subscription_bytes" in stream.head.json["detail"]
            assert (await relay.ask("HEAD", f"/stream{wanted}")).status == 400
            assert relay.relay.peers == {}

    async def test_whatever_the_hub_refuses_is_refused_before_the_head(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with serving() as relay:
            monkeypatch.setattr(relay.relay, "subscribe", lambda *_, **__: Refusal("unauthorized", "not you"))
            stream = await relay.stream()
            stream.read()
            assert stream.head is not None
            assert stream.head.refusal == (403, "unauthorized")
            assert relay.relay.peers == {}
            assert relay.service.open_connections == 1, "it is kept alive, as after any other refusal"


class TestOrder:
    """What consumers are promised of the order in which a session's history comes (AEP-0001 §7)."""

    async def test_a_backfill_is_live_at_once_and_replayed_in_its_place(self) -> None:
        async with serving() as relay:
            live = await relay.stream()
            arrived = [event(0), event(5), event(2), event(1, epoch=1), event(9)]
            for data in arrived:
                await relay.post(data)
            assert live.events() == arrived
            ordered = [event(0), event(2), event(5), event(9), event(1, epoch=1)]
            assert (await relay.stream(REPLAY)).events() == ordered
            assert (await relay.stream("?live=0", {"Last-Event-ID": "s:0:2"})).events() == ordered[2:]

    async def test_foreign_events_stand_where_they_arrived_and_are_resumed_with(self) -> None:
        async with serving() as relay:
            first, second = (event(None, type_="attention.routed", id=f"r-{n}") for n in range(2))
            arrived = [event(0), first, event(1), second]
            await relay.post(*arrived)
            assert (await relay.stream(REPLAY)).events() == arrived
            # Duplicates are legal, losses are not: those behind the position come again.
            assert (await relay.stream("?live=0", {"Last-Event-ID": "s:0:0"})).events() == arrived[1:]
            assert (await relay.stream("?live=0", {"Last-Event-ID": "s:0:1"})).events() == [second]

    async def test_two_sources_that_share_a_name_are_both_kept(self) -> None:
        async with serving() as relay:
            one, other = event(0), event(0, source="aep://elsewhere/s")
            assert (await relay.post(one, other, one)).json == {"accepted": 3}
            assert (await relay.stream(REPLAY)).events() == [one, other]

    async def test_large_epochs_are_exact(self) -> None:
        async with serving() as relay:
            epochs = [2**53, 2**53 + 1, 2**63 - 1]
            events = [event(2**63 - 1, epoch=epoch) for epoch in epochs]
            await relay.post(*reversed(events))
            stream = await relay.stream("?live=0", {"Last-Event-ID": f"s:{2**53}:{2**63 - 1}"})
            assert stream.events() == events[1:]


class TestBounds:
    """What is held, by count and by bytes."""

    async def test_a_session_is_bounded_in_bytes(self) -> None:
        async with serving(Limits(max_session_bytes=10_000)) as relay:
            await relay.post(*(event(seq, data={"text": "x" * 1000}) for seq in range(20)))
            held = (await relay.stream(REPLAY)).messages()
            assert 4 < len(held) < 10
            assert held[-1].id == "s:0:19"

    @pytest.mark.parametrize("limits", [Limits(max_sessions=2), Limits(max_buffer_bytes=4600)])
    async def test_the_session_written_longest_ago_gives_way(self, limits: Limits) -> None:
        async with serving(limits) as relay:
            await relay.post(event(0, "one"), event(0, "two"), event(1, "two"))
            await relay.post(event(1, "one"), event(0, "new", data={"text": "x" * 2000}))
            held = [message.json["session"] for message in (await relay.stream(REPLAY)).messages()]
            assert held == ["one", "one", "new"]
            # Of a session that is wholly gone the relay still knows what is missing.
            for seq, said in ((0, ["replay-exhausted two 0:2"]), (1, [])):
                stream = await relay.stream(query(live="0", from_=[{"session": "two", "seq": seq}]))
                assert stream.comments() == ["stream open", *said, "replay-complete"]


class TestExhaustion:
    async def test_it_is_said_before_what_is_held(self) -> None:
        async with serving(Limits(buffer_events=2)) as relay:
            events = await _filled(relay)
            stream = await relay.stream(query(from_=[{"session": "s", "seq": 0}], live="0"))
            items = [item if isinstance(item, str) else item.data for item in stream.read()]
            assert items == ["stream open", "replay-exhausted s 0:2", *events[2:], "replay-complete"]

    @pytest.mark.parametrize("target", ["?from=all", query(from_=[{"session": "s", "seq": 1}])])
    async def test_it_is_not_said_without_need(self, target: str) -> None:
        async with serving(Limits(buffer_events=2)) as relay:
            await _filled(relay)
            stream = await relay.stream(target)
            items = stream.read()
            assert [item for item in items if isinstance(item, str)] == ["stream open"]
            assert len(items) == 3

    async def test_a_session_name_cannot_break_the_comment(self) -> None:
        session = "a\r\ndata: evil\0 é"
        async with serving(Limits(buffer_events=1)) as relay:
            await _filled(relay, 2, session)
            stream = await relay.stream(
                query(from_=[{"session": session, "seq": 0}, {"session": "t", "seq": 0}])
            )
            assert stream.comments() == ["stream open"]
            await _filled(relay, 3, session)
            stream = await relay.stream(query(from_=[{"session": session, "seq": 0}]))
            assert stream.comments() == ["stream open", f"replay-exhausted {quote(session, safe='')} 0:2"]


class TestHttp10:
    async def test_a_stream_has_no_framing_but_its_end(self) -> None:
        async with serving() as relay:
            events = await _filled(relay)
            stream = await relay.stream(REPLAY, version="1.0")
            assert stream.events() == events
            assert stream.head is not None
            assert "transfer-encoding" not in stream.head.headers
            assert stream.head.headers["connection"] == "close"
            assert not stream.chunked
            assert stream.wire.write_ended

    async def test_it_is_live_too(self, autojump_clock: trio.testing.MockClock) -> None:
        async with serving(Limits(buffer_events=1)) as relay:
            await _filled(relay, 3)
            stream = await relay.stream(query(from_=[{"session": "s", "seq": 0}]), version="1.0")
            assert stream.read()[1] == "replay-exhausted s 0:2"
            await relay.post(event(9))
            assert stream.events() == [event(9)]
            await trio.sleep(31)
            assert stream.comments() == ["ping"]


@pytest.mark.parametrize("began_seconds", [0, 0.25, 0.5, 0.999])
async def test_a_heartbeat_comes_at_least_every_30_seconds(
    began_seconds: float, autojump_clock: trio.testing.MockClock
) -> None:
    async with serving() as relay:
        await trio.sleep(began_seconds)
        stream = await relay.stream()
        stream.read()
        heard_at, gaps = trio.current_time(), list[float]()
        while len(gaps) < 4:
            await trio.sleep(0.02)
            if stream.comments() == ["ping"]:
                gaps.append(trio.current_time() - heard_at)
                heard_at = trio.current_time()
        # As exactly as it is looked for.
        assert max(gaps) < 30.02
        assert min(gaps) > 25


async def test_what_a_client_says_on_its_stream_is_ignored_but_not_for_ever() -> None:
    async with serving() as relay:
        stream = await relay.stream()
        stream.wire.feed(b"x" * 1000)
        await relay.post(event(0))
        assert stream.events() == [event(0)]
        for _ in range(20):
            stream.wire.feed(b"x" * 4096)
        await settle()
        assert stream.comments() == ["closing unexpected-input"]
        assert stream.ended


async def test_a_client_that_leaves_leaves_nothing_behind() -> None:
    async with serving() as relay:
        for leave in (Stream, None):
            stream = await relay.stream("?from=all")
            if leave:
                stream.wire.feed_end()
            else:
                stream.wire.reset()
            await settle()
            assert stream.wire.closed
            assert relay.relay.peers == {}
            assert relay.relay.fanout.index.groups == {}
            assert relay.service.deadlines.waiting == set()
        await relay.post(event())


async def test_streams_end_on_purpose_with_a_comment_and_their_end() -> None:
    async with serving() as relay:
        stream, old = await relay.stream(), await relay.stream(version="1.0")
        stream.read()
        old.read()
        for peer in list(relay.relay.peers.values()):
            relay.relay.close(peer, "shutdown", 1001)
        await settle()
        assert stream.comments() == ["closing shutdown"]
        assert stream.ended
        assert old.comments() == ["closing shutdown"]
        assert old.wire.write_ended


async def test_one_event_is_encoded_once_for_all_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    from aep_relay.protocol import sse

    calls = []
    message = sse.message

    def counted(*arguments: object) -> bytes:
        calls.append(arguments)
        return message(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(sse, "message", counted)
    async with serving() as relay:
        streams = [await relay.stream() for _ in range(5)]
        await relay.post(event(0), event(1), event(2))
        assert [stream.events() for stream in streams] == [[event(0), event(1), event(2)]] * 5
        assert len(calls) == 3


async def test_what_one_piece_of_input_causes_goes_out_in_one_send() -> None:
    async with serving() as relay:
        stream = await relay.stream()
        stream.read()
        await relay.post(*(event(seq) for seq in range(50)))
        assert len(stream.wire.sends) == 1


async def test_a_resume_of_as_many_sessions_as_are_held_fits_the_head() -> None:
    limits = Limits()
    points = [
        {"session": f"00000000-0000-4000-8000-{number:012d}", "epoch": 1764525600000, "seq": 1000 + number}
        for number in range(limits.resume_positions)
    ]
    async with serving(limits) as relay:
        stream = await relay.stream(f"?live=0&from={quote(json.dumps(points))}")
        assert stream.comments()[-1] == "replay-complete"
