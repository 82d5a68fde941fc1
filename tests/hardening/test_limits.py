"""Every limit is tested as a limit: at it all works, above it what is documented happens, over each binding it binds.

A case is registered under the limit's name; the last test finds limits that have none.
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import fields
from typing import Any
from urllib.parse import quote

import pytest
import trio
from trio.testing import MockClock

from aep_relay.hub.limits import Limits
from aep_relay.protocol.event import decode
from tests.bindings.served import (
    JSON,
    Served,
    Socket,
    event,
    hello,
    request,
    serving,
    settle,
    take_answer,
)
from tests.hardening.client import Raw, ask, close_all
from tests.hardening.client import request as raw_request
from tests.hardening.inside import inside

Case = Callable[[], Awaitable[None]]
CASES: dict[str, list[Case]] = {}


def limit(*names: str) -> Callable[[Case], Case]:
    """Register a case for each limit named."""

    def register(case: Case) -> Case:
        for name in names:
            CASES.setdefault(name, []).append(case)
        return case

    return register


async def replayed(
    relay: Served, session: str, after: tuple[int, int] | None = None
) -> tuple[list[int], list[str]]:
    """Return the positions that a replay of ``session`` holds, and the comments that came with it."""
    query = f"?live=0&filter={quote(json.dumps({'session': session}))}"
    if after is not None:
        points = [{"session": session, "epoch": after[0], "seq": after[1]}]
        query += f"&from={quote(json.dumps(points))}"
    items = (await relay.stream(query)).read()
    seqs = [item.json["seq"] for item in items if not isinstance(item, str)]
    return seqs, [item for item in items if isinstance(item, str) and item.startswith("replay-exhausted")]


def padded(size: int, seq: int = 0, session: str = "s") -> bytes:
    """An Event of exactly ``size`` bytes."""
    bare = len(event(seq, session, data={"text": ""}))
    return event(seq, session, data={"text": "x" * (size - bare)})


# Replay buffers


@limit("buffer_events")
async def events_of_one_session() -> None:
    async with serving(Limits(buffer_events=3)) as relay:
        await relay.post(event(1), event(2), event(3))
        assert await replayed(relay, "s", (0, 0)) == ([1, 2, 3], [])
        await relay.post(event(4), event(5, "other"))
        assert await replayed(relay, "s", (0, 0)) == ([2, 3, 4], ["replay-exhausted s 0:2"])
        assert (await relay.ask("GET", "/events")).json["capabilities"]["replay"]["buffer"] == 3


@limit("max_sessions")
async def sessions() -> None:
    async with serving(Limits(max_sessions=2)) as relay:
        await relay.post(event(1, "a"), event(1, "b"), event(2, "a"))
        assert (await replayed(relay, "b"))[0] == [1]
        await relay.post(event(1, "c"))
        assert (await replayed(relay, "b"))[0] == []
        assert (await replayed(relay, "a"))[0] == [1, 2]
        assert await replayed(relay, "b", (0, 0)) == ([], ["replay-exhausted b 0:2"])


@limit("max_session_bytes")
async def bytes_of_one_session() -> None:
    size = decode(event(1)).held_bytes
    async with serving(Limits(max_session_bytes=3 * size)) as relay:
        await relay.post(event(1), event(2), event(3))
        assert (await replayed(relay, "s"))[0] == [1, 2, 3]
        await relay.post(event(4))
        assert await replayed(relay, "s", (0, 0)) == ([2, 3, 4], ["replay-exhausted s 0:2"])


@limit("max_buffer_bytes")
async def bytes_of_all_sessions() -> None:
    size = decode(event(1)).held_bytes
    async with serving(Limits(max_buffer_bytes=3 * size)) as relay:
        await relay.post(event(1, "a"), event(1, "b"), event(2, "b"))
        assert (await replayed(relay, "a"))[0] == [1]
        await relay.post(event(3, "b"))
        assert await replayed(relay, "a", (0, 0)) == ([], ["replay-exhausted a 0:2"])
        assert (await replayed(relay, "b"))[0] == [1, 2, 3]


@limit("max_evicted_sessions")
async def sessions_that_are_remembered() -> None:
    async with serving(Limits(max_sessions=1, max_evicted_sessions=1)) as relay:
        await relay.post(event(1, "a"), event(1, "b"))
        assert (await replayed(relay, "a", (0, 0)))[1] == ["replay-exhausted a 0:2"]
        await relay.post(event(1, "c"))
        assert (await replayed(relay, "b", (0, 0)))[1] == ["replay-exhausted b 0:2"]
        assert (await replayed(relay, "a", (0, 0)))[1] == []


# Backpressure


async def slow_consumer(relay: Served, binding: str) -> tuple[Any, Any]:
    """Return a consumer whose socket takes nothing any more, and its peer."""
    consumer: Any
    if binding == "sse":
        consumer = await relay.stream()
    else:
        consumer = await relay.greeted("consumer")
        await consumer.ask({"type": "subscribe", "id": "s"})
    consumer.wire.capacity_bytes = 0
    return consumer, next(peer for peer in relay.relay.peers.values() if peer.sink.wire is consumer.wire)  # type: ignore[attr-defined]


@limit("soft_limit_bytes")
async def what_is_queued_before_debug_is_dropped() -> None:
    for binding in ("sse", "websocket"):
        async with serving(Limits(soft_limit_bytes=2000)) as relay:
            consumer, peer = await slow_consumer(relay, binding)
            seq = 0
            while peer.outbox.queued_bytes <= 2000:
                assert peer.outbox.dropped_events == 0
                await relay.post(event(seq, severity="debug"))
                seq += 1
            await relay.post(event(seq, severity="debug"))
            await relay.post(event(seq + 1, severity="info"))
            assert peer.outbox.dropped_events == 2
            await relay.post(event(seq + 2, severity="notice"))
            consumer.wire.capacity_bytes = None
            await settle()
            received = consumer.events() if binding == "sse" else consumer.raw()
            seqs = [json.loads(text)["seq"] for text in received]
            assert seqs == [*range(seq), seq + 2]


@limit("hard_limit_bytes")
async def what_is_queued_before_the_end() -> None:
    for binding in ("sse", "websocket"):
        async with serving(Limits(soft_limit_bytes=1000, hard_limit_bytes=8000)) as relay:
            consumer, peer = await slow_consumer(relay, binding)
            seq = 0
            while peer.outbox.queued_bytes <= 8000:
                await relay.post(event(seq, severity="notice"))
                assert peer.closing is None
                seq += 1
            await relay.post(event(seq, severity="notice"))
            assert peer.closing == "slow-consumer"
            consumer.wire.capacity_bytes = None
            await settle()
            if binding == "sse":
                assert "closing slow-consumer" in consumer.comments()
                assert consumer.ended
            else:
                assert consumer.heard()[-1]["reason"] == "slow-consumer"
                assert consumer.closed == 1013
            assert relay.relay.stats.disconnects == {"slow-consumer": 1}


# Sizes


@limit("max_event_bytes")
async def one_event() -> None:
    async with serving(Limits(max_event_bytes=2048)) as relay:
        assert (await relay.post(padded(2048))).status == 202
        assert (await relay.post(padded(2049))).refusal == (413, "invalid-event")
        batch = await relay.post(padded(2048), padded(2049))
        assert (batch.refusal, batch.json["index"]) == ((413, "invalid-event"), 1)
        socket = await relay.greeted()
        assert await socket.ask(padded(2048)) == []
        (refusal,) = await socket.ask(padded(2049))
        assert (refusal["code"], refusal["cause"]) == ("invalid-event", "s-0-0")
        assert socket.closed is None


@limit("max_event_bytes", "max_frame_bytes")
async def one_message() -> None:
    """One that is twice as long as any that could be accepted is not even received."""
    for limits in (
        Limits(max_event_bytes=2048, max_frame_bytes=1024),
        Limits(max_event_bytes=1024, max_frame_bytes=2048),
    ):
        async with serving(limits) as relay:
            socket = await relay.greeted()
            (refusal,) = await socket.ask(padded(4096))
            assert refusal["code"] == "invalid-event"
            (closing,) = await socket.ask(padded(4097))
            assert (closing["reason"], socket.closed) == ("message-too-big", 1009)


@limit("max_body_bytes")
async def one_body() -> None:
    async with serving(Limits(max_body_bytes=4096)) as relay:
        assert (await relay.post(padded(4096))).status == 202
        assert (await relay.post(padded(4097))).refusal == (413, "limit-exceeded")
        chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (4097, padded(4097))
        assert (await relay.chunked("/events", chunks, JSON)).refusal == (413, "limit-exceeded")
        chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (4096, padded(4096))
        assert (await relay.chunked("/events", chunks, JSON)).status == 202


@limit("max_batch_events")
async def events_of_one_post() -> None:
    async with serving(Limits(max_batch_events=3)) as relay:
        assert (await relay.post(event(1), event(2), event(3))).json == {"accepted": 3}
        assert (await relay.post(b"", event(1), b"", event(2), event(3), b"")).json == {"accepted": 3}
        assert (await relay.post(event(4), event(5), event(6), event(7))).refusal == (413, "limit-exceeded")
        assert (await replayed(relay, "s"))[0] == [1, 2, 3]


@limit("max_frame_bytes")
async def one_frame() -> None:
    async with serving(Limits(max_frame_bytes=1024)) as relay:
        socket = await relay.greeted()

        def subscribe(size: int) -> bytes:
            bare = json.dumps({"type": "subscribe", "id": "a", "x": ""})
            return bare.replace('""', f'"{"x" * (size - len(bare))}"').encode()

        assert await socket.ask(subscribe(1024)) == [{"type": "subscribed", "id": "a"}]
        (refusal,) = await socket.ask(subscribe(1025))
        assert (refusal["code"], refusal["id"]) == ("limit-exceeded", "a")
        assert "max_frame_bytes" in refusal["detail"]
        assert await socket.ask(padded(2000)) != [], "what is no frame is not bound by it"


@limit("max_hello_bytes")
async def one_hello() -> None:
    async with serving(Limits(max_hello_bytes=1024)) as relay:
        text = json.dumps(hello()).encode()
        for size, answer in ((1024, "hello"), (1025, "error")):
            socket = await relay.socket()
            (first, *_) = await socket.ask(text + b" " * (size - len(text)))
            assert first["type"] == answer
        assert first["code"] == "hello-required"
        assert "max_hello_bytes" in first["detail"]
        assert socket.closed == 1002


@limit("max_head_bytes")
async def one_head() -> None:
    async with serving(Limits(max_head_bytes=1024)) as relay:
        for target in ("/healthz", "/events", "/stream?live=0"):
            bare = len(request("GET", target, headers={"X": ""}))
            for size, status in ((1024, 200), (1025, 431)):
                wire = relay.connect()
                wire.feed(request("GET", target, headers={"X": "x" * (size - bare)}))
                await settle()
                assert wire.take_sent().startswith(b"HTTP/1.1 %d " % status)
                wire.feed_end()


# What one peer may hold


@limit("max_connections")
async def connections() -> None:
    def attack() -> None:
        with inside(Limits(max_connections=3)) as relay:
            raws = [Raw(relay.port) for _ in range(3)]
            try:
                for raw in raws:
                    raw.send(raw_request("GET", "/healthz"))
                    assert raw.answer().status == 200
                assert ask(relay.port, raw_request("GET", "/healthz")).error == (429, "limit-exceeded")
                raws.pop().close()
                while relay.holdings().connections > 2:
                    time.sleep(0.01)
                assert ask(relay.port, raw_request("GET", "/healthz")).status == 200
            finally:
                close_all(raws)

    await trio.to_thread.run_sync(attack)


@limit("max_address_connections")
async def connections_of_an_address() -> None:
    def attack() -> None:
        with inside(Limits(max_address_connections=2)) as relay:
            streams = [Raw(relay.port) for _ in range(2)]
            try:
                for raw in streams:
                    raw.send(raw_request("GET", "/stream"))
                    assert raw.until(b"stream open").startswith(b"HTTP/1.1 200")
                assert ask(relay.port, raw_request("GET", "/stream")).error == (429, "limit-exceeded")
                assert ask(relay.port, raw_request("GET", "/healthz")).status == 200
            finally:
                close_all(streams)

    await trio.to_thread.run_sync(attack)


@limit("max_subscriptions")
async def subscriptions() -> None:
    async with serving(Limits(max_subscriptions=2)) as relay:
        socket = await relay.greeted()
        for id_ in ("a", "b", "a"):
            assert await socket.ask({"type": "subscribe", "id": id_}) == [{"type": "subscribed", "id": id_}]
        (refusal,) = await socket.ask({"type": "subscribe", "id": "c"})
        assert (refusal["code"], refusal["id"]) == ("limit-exceeded", "c")
        assert "max_subscriptions" in refusal["detail"]
        await socket.ask({"type": "unsubscribe", "id": "a"})
        assert await socket.ask({"type": "subscribe", "id": "c"}) == [{"type": "subscribed", "id": "c"}]


@limit("max_predicates")
async def predicates_of_all_connections() -> None:
    """Two are everybody's, and those of a subscription that only replays count for nothing."""
    three = {"session": "s", "agent": "a", "severity": {"gte": "notice"}}
    many = {f"region{number}": number for number in range(60)}
    async with serving(Limits(max_predicates=59)) as relay:
        greedy, late = await relay.greeted(), await relay.greeted()
        assert (await greedy.ask({"type": "subscribe", "id": "a", "filter": many}))[0]["type"] == "subscribed"
        (answer,) = await greedy.ask({"type": "subscribe", "id": "b", "filter": {"agent": ["a", "b"]}})
        assert answer["type"] == "subscribed"
        for socket, filter_ in ((late, three), (greedy, {})):
            (refusal,) = await socket.ask({"type": "subscribe", "id": "c", "filter": filter_})
            assert (refusal["code"], refusal["id"]) == ("limit-exceeded", "c")
            assert "max_predicates" in refusal["detail"]
        for id_ in ("a", "b"):
            assert (await late.ask({"type": "subscribe", "id": id_}))[0]["type"] == "subscribed"
        refused = await relay.ask("GET", f"/stream?filter={quote(json.dumps(three))}")
        assert refused.refusal == (429, "limit-exceeded")
        replay = await relay.stream(f"?live=0&filter={quote(json.dumps(three))}")
        assert replay.comments() == ["stream open", "replay-complete"]
        # In place of one that it has, and when another has left.
        (answer,) = await greedy.ask({"type": "subscribe", "id": "a", "filter": three})
        assert answer["type"] == "subscribed"
        assert relay.relay.membership.predicates == 2
        (answer,) = await late.ask({"type": "subscribe", "id": "a", "filter": three})
        assert answer["type"] == "subscribed"
        for socket in (greedy, late):
            socket.wire.feed_end()
        await settle()
        assert relay.relay.membership.predicates == 0


@limit("max_subscription_bytes")
async def what_subscriptions_hold() -> None:
    async with serving(Limits(max_subscription_bytes=64 * 1024)) as relay:
        socket = await relay.greeted()
        wide = {"run": [f"r{number}" for number in range(100)]}
        assert (await socket.ask({"type": "subscribe", "id": "a", "filter": wide}))[0]["type"] == "subscribed"
        (refusal,) = await socket.ask({"type": "subscribe", "id": "b", "filter": wide})
        assert (refusal["code"], refusal["id"]) == ("limit-exceeded", "b")
        assert "max_subscription_bytes" in refusal["detail"]
        wider = quote(json.dumps({**wide, "step": wide["run"]}))
        refused = await relay.ask("GET", f"/stream?live=0&filter={wider}")
        assert refused.refusal == (400, "limit-exceeded")
        assert "max_subscription_bytes" in refused.json["detail"]


@limit("max_subscription_bytes")
async def what_replays_hold() -> None:
    """One replay of everything may always be; many at a time are bounded, and count no more when they are over."""
    async with serving(Limits(max_subscription_bytes=64 * 1024)) as relay:
        await relay.post(*(event(0, f"s{number}") for number in range(400)))
        socket = await relay.greeted(capacity_bytes=2000)
        everything = [{"type": "subscribe", "id": id_, "from": "all"} for id_ in ("a", "b", "c")]
        socket.wire.capacity_bytes = 0
        await socket.ask(*everything)
        socket.wire.capacity_bytes = None
        await settle()
        told = socket.heard()
        (refusal,) = [message for message in told if message["type"] == "error"]
        assert (refusal["code"], refusal["id"]) == ("limit-exceeded", "c")
        assert sum(message["type"] == "tool.requested" for message in told) == 800
        assert (await socket.ask(everything[2]))[0] == {"type": "subscribed", "id": "c"}


@limit("max_claims")
async def claims() -> None:
    async with serving(Limits(max_claims=2)) as relay:
        socket = await relay.greeted()
        assert await socket.ask(event(0, "a"), event(0, "b"), event(1, "a")) == []
        (refusal,) = await socket.ask(event(0, "c"))
        assert (refusal["code"], refusal["cause"]) == ("limit-exceeded", "c-0-0")
        assert "max_claims" in refusal["detail"]
        assert (await relay.post(event(0, "c"))).status == 202, "what claims nothing is not bound by it"


@limit("max_claim_bytes")
async def what_claims_add_to_a_roster() -> None:
    async with serving(Limits(max_claim_bytes=128 * 1024)) as relay:
        socket = await relay.greeted(capabilities={"control": {"accepts": ["x" * 50_000]}})
        assert await socket.ask(event(0, "a"), event(0, "b")) == []
        (refusal,) = await socket.ask(event(0, "c"))
        assert (refusal["code"], refusal["cause"]) == ("limit-exceeded", "c-0-0")
        assert "max_claim_bytes" in refusal["detail"]


@limit("max_from_positions", "max_sessions")
async def resume_positions() -> None:
    for limits in (Limits(max_from_positions=2), Limits(max_sessions=2)):
        async with serving(limits) as relay:
            points = [{"session": f"s{number}", "seq": 0} for number in range(3)]
            socket = await relay.greeted()
            for count, kind in ((2, "subscribed"), (3, "error")):
                (answer,) = await socket.ask({"type": "subscribe", "id": "a", "from": points[:count]})
                assert answer["type"] == kind
            assert answer["code"] == "limit-exceeded"
            assert "max_from_positions" in answer["detail"]
            refused = await relay.ask("GET", f"/stream?live=0&from={quote(json.dumps(points))}")
            assert refused.refusal == (400, "limit-exceeded")
            opened = await relay.stream(f"?live=0&from={quote(json.dumps(points[:2]))}")
            assert opened.read()[0] == "stream open"


# Deadlines


async def ends_after(wire: Any, most_seconds: float = 200) -> float:
    """Return after how many seconds the relay has ended ``wire``."""
    began = trio.current_time()
    while not (wire.closed or wire.write_ended):
        await trio.sleep(0.05)
        assert trio.current_time() - began < most_seconds
    return trio.current_time() - began


@limit("head_timeout_seconds")
async def a_head_in_time() -> None:
    async with serving(Limits(head_timeout_seconds=5)) as relay:
        wire = relay.connect()
        data = request("GET", "/healthz")
        wire.feed(data[:10])
        await trio.sleep(4.5)
        wire.feed(data[10:])
        await settle()
        assert take_answer(wire.take_sent())[0].status == 200
        wire.feed(data[:10])
        assert 5 <= await ends_after(wire) <= 6.2
        assert take_answer(wire.take_sent())[0].refusal == (408, "timeout")


@limit("body_timeout_seconds")
async def a_body_in_time() -> None:
    async with serving(Limits(body_timeout_seconds=5)) as relay:
        wire = relay.connect()
        data = request("POST", "/events", event(), JSON)
        wire.feed(data[:-10])
        await trio.sleep(4.5)
        wire.feed(data[-10:])
        await settle()
        assert take_answer(wire.take_sent())[0].status == 202
        wire.feed(data[:-10])
        assert 5 <= await ends_after(wire) <= 6.2
        assert take_answer(wire.take_sent())[0].refusal == (408, "timeout")
        deaf = relay.connect(capacity_bytes=10)
        deaf.feed(request("GET", "/events"))
        assert 5 <= await ends_after(deaf) <= 6.2
        assert deaf.aborted, "an answer that is not taken is the last"


@limit("hello_timeout_seconds")
async def a_hello_in_time() -> None:
    async with serving(Limits(hello_timeout_seconds=5)) as relay:
        early, late = await relay.socket(), await relay.socket()
        await trio.sleep(4.5)
        assert (await early.ask(hello()))[0]["type"] == "hello"
        assert 0.5 <= await ends_after(late.wire) <= 1.7
        assert [message["code"] for message in late.heard()] == ["hello-required"]
        assert late.closed == 1008
        await trio.sleep(10)
        assert early.closed is None


@limit("idle_timeout_seconds")
async def a_next_request_in_time() -> None:
    async with serving(Limits(idle_timeout_seconds=5)) as relay:
        wire = relay.connect()
        for _ in range(3):
            await trio.sleep(4.5)
            wire.feed(request("GET", "/healthz"))
            await settle()
            assert take_answer(wire.take_sent())[0].status == 200
        assert 5 <= await ends_after(wire) <= 6.2
        assert wire.take_sent() == b""


@limit("ping_interval_seconds")
async def heartbeats_in_time() -> None:
    async with serving(Limits(ping_interval_seconds=10)) as relay:
        socket, stream = await relay.greeted(), await relay.stream()
        stream.read()
        for _ in range(3):
            await trio.sleep(10.1)
            (ping, *_) = socket.heard()
            assert ping["type"] == "ping"
            socket.say({"type": "pong", "t": ping["t"]})
            assert "ping" in stream.comments()


@limit("ping_timeout_seconds")
async def signs_of_life_in_time() -> None:
    async with serving(Limits(ping_interval_seconds=4, ping_timeout_seconds=20)) as relay:
        lively, silent = await relay.greeted(), await relay.greeted()
        for _ in range(3):
            await trio.sleep(6)
            lively.say({"type": "pong"})
            assert silent.closed is None
        assert 2 <= await ends_after(silent.wire) <= 3.2
        assert (silent.heard()[-1]["reason"], silent.closed) == ("ping-timeout", 1008)
        assert lively.closed is None


@limit("stalled_timeout_seconds")
async def bytes_taken_in_time() -> None:
    async with serving(Limits(stalled_timeout_seconds=20)) as relay:

        async def watch() -> None:
            while True:
                await trio.sleep(1)
                relay.relay.abort_stalled(trio.current_time())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            for binding in ("sse", "websocket"):
                consumer, _ = await slow_consumer(relay, binding)
                await relay.post(event(0, severity="notice"))
                for _ in range(3):
                    await trio.sleep(15)
                    consumer.wire.capacity_bytes = 1
                    if binding == "websocket":
                        consumer.say({"type": "pong"})
                assert 19 <= await ends_after(consumer.wire) <= 22
                assert consumer.wire.aborted
            nursery.cancel_scope.cancel()


@limit("closing_timeout_seconds")
async def a_farewell_in_time() -> None:
    async with serving(Limits(closing_timeout_seconds=5)) as relay:
        for binding in ("sse", "websocket"):
            consumer, peer = await slow_consumer(relay, binding)
            relay.relay.close(peer, "shutdown", 1001)
            await trio.sleep(4.5)
            assert not consumer.wire.aborted
            assert 0.4 <= await ends_after(consumer.wire) <= 1
            assert consumer.wire.aborted
            taking, peer = await slow_consumer(relay, binding)
            relay.relay.close(peer, "shutdown", 1001)
            await trio.sleep(4.5)
            taking.wire.capacity_bytes = None
            await settle()
            assert not taking.wire.aborted
            if isinstance(taking, Socket):
                assert (taking.heard()[-1]["reason"], taking.closed) == ("shutdown", 1001)
            else:
                assert "closing shutdown" in taking.comments()


@limit("drain_timeout_seconds")
async def an_end_in_time() -> None:
    """Measured on the daemon itself, with a consumer that takes no farewell."""

    def stop(seconds: float) -> float:
        with inside(Limits(drain_timeout_seconds=seconds, closing_timeout_seconds=60)) as relay:
            deaf = Raw(relay.port, receive_buffer_bytes=4096)
            deaf.send(raw_request("GET", "/stream"))
            deaf.until(b"stream open")
            with Raw(relay.port) as emitter:
                for seq in range(8):
                    emitter.send(
                        raw_request(
                            "POST",
                            "/events",
                            padded(1 << 20, seq),
                            AEP_Version="0.1",
                            Content_Type="application/json",
                        )
                    )
                    assert emitter.answer().status == 202
            began = time.monotonic()
            relay.stop()
            deaf.close()
            return time.monotonic() - began

    # Nobody waits for the 60 seconds of the farewell.
    for seconds in (0.5, 1.5):
        assert seconds - 0.1 <= await trio.to_thread.run_sync(stop, seconds) < 20


@pytest.mark.parametrize(
    "case", {case: None for cases in CASES.values() for case in cases}, ids=lambda case: case.__name__
)
async def test_limit(case: Case, autojump_clock: MockClock) -> None:
    await case()


def test_every_limit_is_tested() -> None:
    assert set(CASES) == {field.name for field in fields(Limits)}
