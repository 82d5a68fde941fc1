"""Slow consumers, on both bindings: what they lose, when they are sent away, and with which words."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import trio
from websockets.frames import Frame, Opcode

from aep_relay.hub.limits import Limits
from tests.bindings.served import Served, Socket, Stream, event, serving, settle

if TYPE_CHECKING:
    from tests.fakes.log import Log
    from tests.fakes.wire import MemoryWire

LIMITS = Limits(soft_limit_bytes=10_000, hard_limit_bytes=50_000, max_event_bytes=20_000)
WINDOW_BYTES = 3_000
"""What a slow consumer's socket takes before it blocks."""

BINDINGS = ["stream", "socket"]


def fat(seq: int, severity: str | None = None) -> bytes:
    """Return an Event of 1,000 bytes."""
    bare = len(event(seq, subject="", severity=severity))
    return event(seq, subject="x" * (1000 - bare), severity=severity)


class Consumer:
    """A consumer over either binding."""

    def __init__(self, client: Stream | Socket) -> None:
        self.client = client

    @property
    def wire(self) -> MemoryWire:
        return self.client.wire

    def events(self) -> list[bytes]:
        if isinstance(self.client, Stream):
            return self.client.events()
        return [text for text in self.client.raw() if b'"closing"' not in text]


async def slow(relay: Served, binding: str, filter_: str = "{}") -> Consumer:
    """Return a consumer that has read everything so far, and whose socket takes ``WINDOW_BYTES`` more."""
    if binding == "stream":
        stream = await relay.stream(f"?filter={filter_}", capacity_bytes=None)
        stream.read()
        client: Stream | Socket = stream
    else:
        client = await relay.greeted("consumer")
        await client.ask({"type": "subscribe", "id": "a", "filter": json.loads(filter_)})
    client.wire.capacity_bytes = WINDOW_BYTES
    return Consumer(client)


async def send(relay: Served, *events: bytes) -> None:
    for data in events:
        assert (await relay.post(data)).status == 202


def seqs(events: list[bytes]) -> list[int]:
    return [json.loads(data)["seq"] for data in events]


@pytest.mark.parametrize("binding", BINDINGS)
async def test_between_the_limits_debug_and_info_are_dropped_and_nothing_else(binding: str, log: Log) -> None:
    async with serving(LIMITS) as relay:
        consumer = await slow(relay, binding)
        severities = ["debug", "info", "notice", "warning", "error", "critical", None]
        for seq in range(70):
            await send(relay, fat(seq, severity=severities[seq % 7]))
        (peer,) = relay.relay.peers.values()
        consumer.wire.capacity_bytes = None
        await settle()
        received = seqs(consumer.events())
        dropped = [seq for seq in range(70) if seq not in received]
        # The window and the soft limit were filled by all; what comes then is chosen.
        assert received == sorted(received)
        assert min(dropped) >= (WINDOW_BYTES + LIMITS.soft_limit_bytes) // 1100
        assert {severities[seq % 7] for seq in dropped} == {"debug", "info", None}
        assert all(seq in received for seq in range(70) if severities[seq % 7] not in ("debug", "info", None))
        assert peer.outbox.dropped_events == len(dropped)
        await send(relay, fat(70))
        assert seqs(consumer.events()) == [70]
        consumer.wire.feed_end()
        await settle()
        (closed,) = log.records("connection closed")
        assert (closed["dropped"], closed["delivered"]) == (len(dropped), len(received) + 1)


@pytest.mark.parametrize("binding", BINDINGS)
async def test_debug_and_info_alone_never_end_a_connection(binding: str) -> None:
    async with serving(LIMITS) as relay:
        consumer = await slow(relay, binding)
        await send(relay, *(fat(seq, severity="info") for seq in range(500)))
        (peer,) = relay.relay.peers.values()
        assert peer.outbox.queued_bytes < LIMITS.soft_limit_bytes + 2_000
        assert peer.closing is None
        consumer.wire.capacity_bytes = None
        await settle()
        assert len(consumer.events()) < 20


async def overrun(relay: Served) -> int:
    """Send notices until the consumer is sent away; return how many were sent."""
    (peer,) = relay.relay.peers.values()
    sent = 0
    while peer.closing is None:
        await send(relay, fat(sent, severity="notice"))
        sent += 1
        assert sent < 100
    return sent


async def test_above_the_hard_limit_a_socket_is_closed_with_its_positions(log: Log) -> None:
    async with serving(LIMITS) as relay:
        consumer = await slow(relay, "socket")
        sent = await overrun(relay)
        assert isinstance(consumer.client, Socket)
        # Nothing but the rest of the frame that was begun, the closing frame and the close are left to send.
        consumer.wire.capacity_bytes = None
        await settle()
        *events, closing = consumer.client.heard()
        assert consumer.client.closed == 1013
        received = [found["seq"] for found in events]
        assert received == list(range(len(received)))
        assert len(received) < 5 < sent
        assert closing == {
            "type": "closing",
            "reason": "slow-consumer",
            "delivered": [{"sub": "a", "session": "s", "epoch": 0, "seq": received[-1]}],
        }
        # It resumes exactly.
        again = await relay.greeted("consumer")
        again.say({"type": "subscribe", "id": "a", "from": closing["delivered"]})
        await settle()
        assert [found["seq"] for found in again.heard()[1:]] == list(range(len(received), sent))
        consumer.wire.feed_end()
        await settle()
        assert log.records("connection closed")[0]["reason"] == "slow-consumer"
        assert relay.relay.stats.disconnects == {"slow-consumer": 1}


async def test_above_the_hard_limit_a_stream_is_ended(log: Log) -> None:
    async with serving(LIMITS) as relay:
        consumer = await slow(relay, "stream")
        sent = await overrun(relay)
        consumer.wire.capacity_bytes = None
        await settle()
        assert isinstance(consumer.client, Stream)
        items = consumer.client.read()
        assert items.pop() == "closing slow-consumer"
        assert consumer.client.ended
        last = items[-1]
        assert not isinstance(last, str)
        assert last.id is not None
        resumed = await relay.stream("?live=0", {"Last-Event-ID": last.id})
        received = [item.data for item in items if not isinstance(item, str)]
        assert seqs(received + resumed.events()) == list(range(sent))
        consumer.wire.feed_end()
        await settle()
        assert log.records("connection closed")[0]["reason"] == "slow-consumer"


@pytest.mark.parametrize("binding", BINDINGS)
async def test_who_takes_not_even_the_farewell_is_aborted(
    binding: str, autojump_clock: trio.testing.MockClock
) -> None:
    async with serving(LIMITS) as relay:
        consumer = await slow(relay, binding)
        await overrun(relay)
        await trio.sleep(4.5)
        assert not consumer.wire.closed
        await trio.sleep(1)
        assert consumer.wire.aborted
        assert relay.relay.peers == {}


@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_frame_goes_out_whole_or_the_connection_is_aborted(
    binding: str, autojump_clock: trio.testing.MockClock
) -> None:
    for window_bytes in range(1, 2500, 250):
        async with serving(LIMITS) as relay:
            consumer = await slow(relay, binding)
            consumer.wire.capacity_bytes = window_bytes
            await overrun(relay)
            consumer.wire.capacity_bytes = 5
            await settle()
            # Whatever was begun, and however slowly the rest is taken: the framing is checked by the reader.
            for _ in range(300):
                consumer.wire.capacity_bytes = 7
                await settle()
            consumer.events()
            if isinstance(consumer.client, Socket):
                assert consumer.client.closed == 1013
            else:
                assert consumer.client.ended


@pytest.mark.parametrize("binding", BINDINGS)
async def test_one_large_event_evicts_nobody_who_had_kept_up(binding: str) -> None:
    async with serving(LIMITS) as relay:
        consumer = await slow(relay, binding)
        large = event(0, severity="notice", subject="x" * 19_000)
        await send(relay, large)
        (peer,) = relay.relay.peers.values()
        assert peer.closing is None
        consumer.wire.capacity_bytes = None
        await settle()
        assert consumer.events() == [large]


@pytest.mark.parametrize("binding", BINDINGS)
async def test_below_the_hard_limit_a_slow_consumer_is_kept_however_slow(
    binding: str, autojump_clock: trio.testing.MockClock
) -> None:
    async with serving(LIMITS) as relay:
        consumer = await slow(relay, binding)
        await send(relay, *(fat(seq, severity="notice") for seq in range(30)))
        received: list[bytes] = []
        for _ in range(200):
            await trio.sleep(20)
            consumer.wire.capacity_bytes = 173
            await settle()
            if isinstance(consumer.client, Socket):
                consumer.client.say_frame(Frame(Opcode.PONG, b""))
        consumer.wire.capacity_bytes = None
        await settle()
        received = [data for data in consumer.events() if b'"ping"' not in data]
        assert seqs(received) == list(range(30))


@pytest.mark.parametrize("binding", BINDINGS)
async def test_others_do_not_notice(binding: str) -> None:
    async with serving(LIMITS) as relay:
        quick = await relay.stream()
        quick.read()
        await slow(relay, binding)
        events = [fat(seq, severity="notice") for seq in range(100)]
        await send(relay, *events)
        assert quick.events() == events


@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_replaying_consumer_is_paced_and_not_evicted(binding: str) -> None:
    async with serving(LIMITS) as relay:
        events = [fat(seq, severity="notice") for seq in range(1000)]
        await relay.post(*events[:500])
        if binding == "stream":
            stream = await relay.stream("?from=all", capacity_bytes=WINDOW_BYTES)
            consumer = Consumer(stream)
        else:
            socket = await relay.greeted("consumer")
            socket.wire.capacity_bytes = WINDOW_BYTES
            socket.say({"type": "subscribe", "id": "a", "from": "all"})
            consumer = Consumer(socket)
        await settle()
        await relay.post(*events[500:])
        (peer,) = relay.relay.peers.values()
        # A replay's memory does not grow with what there is to replay.
        assert peer.closing is None
        assert peer.outbox.queued_bytes < 2 * 128 * 1024
        consumer.wire.capacity_bytes = None
        await settle()
        assert [data for data in consumer.events() if b"subscribed" not in data] == events


@pytest.mark.parametrize(
    "message", [b'{"type":"ping","t":"%b"}' % (b"x" * 500), b"nonsense", b'{"type":"roster","id":"r"}']
)
async def test_answers_that_nobody_takes_are_bounded_too(message: bytes) -> None:
    async with serving(LIMITS) as relay:
        socket = await relay.greeted("consumer")
        socket.wire.capacity_bytes = 100
        (peer,) = relay.relay.peers.values()
        for _ in range(2000):
            socket.say(message)
            await settle()
            assert peer.outbox.queued_bytes < LIMITS.hard_limit_bytes + 2000
            if peer.closing is not None:
                break
        assert peer.closing == "slow-consumer"


async def test_eviction_that_overtakes_a_replay_is_said() -> None:
    async with serving(Limits(buffer_events=400)) as relay:
        await relay.post(*(fat(seq) for seq in range(400)))
        stream = await relay.stream("?from=all", capacity_bytes=WINDOW_BYTES)
        await relay.post(*(fat(seq) for seq in range(400, 1000)))
        stream.wire.capacity_bytes = None
        await settle()
        items: list[Any] = [item if isinstance(item, str) else item.json["seq"] for item in stream.read()[1:]]
        at = items.index("replay-exhausted s 0:600")
        assert items[:at] == list(range(at))
        assert at < 400
        assert items[at + 1 :] == list(range(600, 1000))


@pytest.mark.parametrize("binding", BINDINGS)
async def test_who_is_cut_off_in_mid_frame_sees_no_end(binding: str) -> None:
    async with serving(LIMITS) as relay:
        cut, up_to_date = await slow(relay, binding), await slow(relay, binding)
        up_to_date.wire.capacity_bytes = None
        await send(relay, *(fat(seq) for seq in range(5)))
    # Everything was cancelled, as at the end of the grace at shutdown.
    assert (cut.wire.closed, cut.wire.aborted) == (True, True)
    assert (up_to_date.wire.closed, up_to_date.wire.aborted) == (True, False)
