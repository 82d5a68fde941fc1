"""What a connection has yet to be sent: whole frames only, within limits, and shared where it can be."""

from __future__ import annotations

from typing import TYPE_CHECKING

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from aep_relay.hub import outbox as module
from aep_relay.hub.outbox import BATCH_OVERHEAD_BYTES, BROKEN, FREE_BATCHES, Batch, Mark, Outbox
from aep_relay.protocol.frames import text_frame
from aep_relay.protocol.framing import Framing
from tests.fakes.sink import MemorySink, split

if TYPE_CHECKING:
    from aep_relay.protocol.position import Position

SCOPE = object()


def batch(*frames: bytes, droppable: str = "") -> Batch:
    """A batch of frames at positions from 1; ``droppable`` has a ``d`` for each that may be dropped."""
    made = Batch(SCOPE)
    for number, frame in enumerate(frames):
        position = (0, number + 1)
        made.frames.append(frame)
        made.marks.append(Mark("s", position, position, droppable[number : number + 1] == "d", number + 1))
        made.size_bytes += len(frame)
    return made


def drained(outbox: Outbox, *capacities: int) -> bytes:
    """What a sink takes that has so much room each time it is drained."""
    sink = MemorySink()
    for capacity in capacities:
        sink.capacity_bytes = capacity
        outbox.drain(sink.send)
    return bytes(sink.taken)


def test_an_empty_outbox_holds_no_queue() -> None:
    outbox = Outbox(10, 20)
    assert not outbox
    assert outbox.drain(MemorySink().send)
    outbox.push(b"a")
    assert outbox
    assert drained(outbox, 1) == b"a"
    assert outbox.queue is None


def test_what_was_begun_goes_on_where_it_stopped() -> None:
    outbox = Outbox(100, 200)
    outbox.partly_sent(batch(b"aaaa", b"bbbb"), 3)
    outbox.push(b"cc")
    assert outbox.queued_bytes == 7
    assert drained(outbox, 2, 3, 99) == b"abbbbcc"
    assert (outbox.queued_bytes, outbox.sent_bytes) == (0, 7)


def test_one_send_carries_several_items_and_no_more_than_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SEND_BYTES", 8)
    outbox = Outbox(100, 200)
    for data in (b"aaa", b"bbb", b"ccc", b"ddd"):
        outbox.push(data)
    sink = MemorySink()
    assert not outbox.drain(sink.send)
    assert bytes(sink.taken) == b"aaabbbccc"
    assert outbox.drain(sink.send)
    assert sink.sends == 2


def test_nothing_is_taken_from_a_queue_that_would_block() -> None:
    outbox = Outbox(100, 200)
    outbox.push(b"aaa")
    assert not outbox.drain(MemorySink(0).send)
    assert outbox.queued_bytes == 3


def test_a_broken_connection_discards_its_queue() -> None:
    outbox = Outbox(100, 200)
    outbox.offer(batch(b"aaa", b"bbb"))
    assert outbox.drain(lambda _: BROKEN)
    assert (outbox.queue, outbox.queued_bytes, outbox.head_sent_bytes) == (None, 0, 0)


def test_debug_and_info_are_dropped_above_the_soft_limit_only() -> None:
    outbox = Outbox(4, 100)
    mixed = batch(b"aa", b"bb", b"cc", droppable="d-d")
    assert outbox.offer(mixed)  # nothing was queued before
    assert outbox.queued_bytes == 6
    assert outbox.offer(mixed)
    assert (outbox.queued_bytes, outbox.dropped_events) == (8, 2)
    assert drained(outbox, 99) == b"aabbccbb"


def test_very_many_batches_weigh_more_than_their_frames() -> None:
    outbox = Outbox(10**6, 10**6 + 50 * BATCH_OVERHEAD_BYTES)
    while outbox.offer(batch(b"x")):
        assert len(outbox.queue or ()) < 3_000
    assert outbox.queued_batches > FREE_BATCHES + 900
    assert not outbox.push(b"y")
    sent = outbox.queued_bytes // 2
    outbox.drain(lambda data: sent)
    assert outbox.offer(batch(b"x"))
    outbox.discard()
    assert outbox.weight_bytes == 0


def test_exactly_at_the_soft_limit_nothing_is_dropped() -> None:
    outbox = Outbox(2, 100)
    outbox.push(b"xx")
    outbox.offer(batch(b"aa", droppable="d"))
    assert outbox.dropped_events == 0


def test_a_batch_of_which_nothing_is_left_is_not_queued() -> None:
    outbox = Outbox(0, 100)
    outbox.push(b"x")
    assert outbox.offer(batch(b"aa", b"bb", droppable="dd"))
    assert (outbox.queued_bytes, outbox.dropped_events) == (1, 2)


def test_the_part_without_debug_and_info_is_made_once_for_all_who_need_it() -> None:
    mixed = batch(b"aa", b"bb", droppable="d-")
    assert mixed.essential() is mixed.essential()
    plain = batch(b"aa", b"bb")
    assert plain.essential() is plain
    assert mixed.essential().frames[0] is mixed.frames[1]


@pytest.mark.parametrize(("queued", "taken"), [(10, True), (11, False)])
def test_the_hard_limit_counts_what_was_queued_before(queued: int, taken: bool) -> None:
    outbox = Outbox(5, 10)
    outbox.push(b"x" * queued)
    assert outbox.offer(batch(b"y" * 1000)) is taken
    outbox = Outbox(5, 10)
    outbox.push(b"x" * queued)
    assert outbox.push(b"y" * 1000) is taken


def test_joined_bytes_are_made_once_and_given_up() -> None:
    shared = batch(b"aa", b"bb")
    assert shared.joined() is shared.joined()
    shared.release()
    assert shared.data() == b"aabb"
    assert shared._joined is None, "one consumer that fell behind does not keep a copy for all"


@pytest.mark.parametrize(
    ("sent", "rest"),
    [(0, b""), (1, b"aa"), (2, b"a"), (3, b""), (4, b"bbb"), (6, b"b"), (7, b""), (8, b"ccc")],
)
def test_a_cut_leaves_the_rest_of_the_frame_that_was_begun(sent: int, rest: bytes) -> None:
    outbox = Outbox(100, 200)
    outbox.partly_sent(batch(b"aaa", b"bbbb", b"cccc"), sent)
    outbox.offer(batch(b"dd"))
    outbox.push(b"ee")
    outbox.cut()
    assert outbox.queued_bytes == len(rest)
    outbox.push(b"!")
    assert drained(outbox, 1, 1, 99) == rest + b"!"


def test_a_cut_leaves_the_rest_of_other_frames_too() -> None:
    outbox = Outbox(100, 200)
    outbox.partly_sent(b"pong", 2)
    outbox.offer(batch(b"dd"))
    outbox.cut()
    assert drained(outbox, 99) == b"ng"


@pytest.mark.parametrize(("sent", "first"), [(0, 0), (1, 1), (3, 1), (4, 2), (7, 2), (8, 3)])
def test_what_counts_as_unsent_begins_behind_the_frame_that_was_begun(sent: int, first: int) -> None:
    outbox = Outbox(100, 200)
    head, more = batch(b"aaa", b"bbbb", b"cccc"), batch(b"dd")
    outbox.partly_sent(head, sent)
    outbox.push(b"ping")
    outbox.offer(more)
    assert list(outbox.unsent()) == [(head, first), (more, 0)]


@pytest.mark.parametrize(
    ("droppable", "kept"), [("d--", (0, 3)), ("-d-", (0, 3)), ("--d", (0, 2)), ("d-d", (0, 2)), ("ddd", None)]
)
def test_what_was_kept_between_drops_is_remembered(droppable: str, kept: Position | None) -> None:
    outbox = Outbox(0, 100)
    outbox.push(b"x")
    mixed = batch(b"aa", b"bb", b"cc", droppable=droppable)
    mixed.before[(SCOPE, "s")] = ((0, (0, 0)),)
    outbox.offer(mixed)
    assert outbox.skips is not None
    skip = outbox.skips[(SCOPE, "s")]
    assert skip.kept == kept
    assert skip.before == ((0, (0, 0)),)
    assert skip.stamp == droppable.rindex("d") + 1


def test_the_memory_of_drops_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SKIPS", 3)
    outbox = Outbox(0, 100)
    outbox.push(b"x")
    for number in range(20):
        one = Batch(SCOPE)
        one.frames, one.size_bytes = [b"aa"], 2
        one.marks = [Mark(f"s{number}", (0, 1), (0, 1), True, number)]
        outbox.offer(one)
        assert outbox.skips is not None
        assert len(outbox.skips) <= 4
    assert outbox.dropped_events == 20


actions = st.lists(
    st.one_of(
        st.tuples(st.just("offer"), st.integers(0, 60)),
        st.tuples(st.just("push"), st.integers(0, 60)),
        st.tuples(st.just("drain"), st.integers(0, 90)),
    ),
    max_size=30,
)


@settings(max_examples=150)
@given(actions=actions, data=st.data())
def test_no_frame_is_ever_spliced(actions: list[tuple[str, int]], data: st.DataObject) -> None:
    """Whatever is offered, taken and cut when: frames come out whole and in order."""
    outbox, sink = Outbox(80, 160), MemorySink(0)
    offered: list[bytes] = []
    for number, (action, size) in enumerate(actions):
        frame = text_frame(b"%d:" % number + b"x" * size)
        if action == "offer":
            half = text_frame(b"%d;" % number)
            if outbox.offer(batch(frame, half, droppable="d-")):
                offered += [frame, half]
        elif action == "push":
            if outbox.push(frame):
                offered.append(frame)
        else:
            sink.capacity_bytes = size
            outbox.drain(sink.send)
            assert outbox.queued_bytes == sum(len(_bytes(item)) for item in outbox.queue or ()) - (
                outbox.head_sent_bytes
            )
            assert outbox.queued_batches == sum(isinstance(item, Batch) for item in outbox.queue or ())
    if data.draw(st.booleans(), label="cut"):
        outbox.cut()
        outbox.push(text_frame(b"closing"))
    sink.capacity_bytes = None
    while not outbox.drain(sink.send):
        pass
    frames, rest = split(Framing.WEBSOCKET, bytes(sink.taken))
    assert rest == b""
    positions = [offered.index(frame) for frame in frames if frame != text_frame(b"closing")]
    assert positions == sorted(positions)


def _bytes(item: Batch | bytes) -> bytes:
    return item if isinstance(item, bytes) else item.data()
