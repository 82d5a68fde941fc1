"""One session's buffer: order, riders, eviction, and cursors that notice what they lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from aep_relay.hub.buffer import START, Cursor, Lost, SessionBuffer, after_lost
from aep_relay.hub.limits import Limits
from aep_relay.protocol.position import MAX_POSITION
from tests.hub.build import event, exhausted
from tests.hub.model import NaiveCursor, NaiveStore, follows

if TYPE_CHECKING:
    from aep_relay.protocol.event import Event
    from aep_relay.protocol.position import Position


def filled(*items: tuple[str, int | None]) -> SessionBuffer:
    """A buffer with these ids at these seqs, None for a rider, in order of arrival."""
    buffer = SessionBuffer("s")
    for id_, seq in items:
        assert buffer.admit(event(id_, seq)) is not None
    return buffer


def rest(buffer: SessionBuffer, cursor: Cursor) -> list[str]:
    """The ids that ``cursor`` has yet to read."""
    events, at_end = buffer.read(cursor, 1000, 1 << 30)
    assert at_end
    return [item.id for item in events]


def held(buffer: SessionBuffer) -> list[str]:
    return rest(buffer, buffer.cursor_at_start())


def after(buffer: SessionBuffer, seq: int, epoch: int = 0) -> list[str]:
    """The ids replayed to who resumes after ``(epoch, seq)``."""
    return rest(buffer, Cursor((epoch, seq), after=(epoch, seq)))


def evict(buffer: SessionBuffer, times: int) -> None:
    for _ in range(times):
        buffer.evict_oldest()


def test_order_is_by_position_and_backfills_find_their_place() -> None:
    buffer = filled(("c", 3), ("a", 1), ("b", 2))
    assert held(buffer) == ["a", "b", "c"]


def test_positions_are_compared_as_pairs() -> None:
    buffer = SessionBuffer("s")
    for id_, epoch, seq in (("big", 2**62, 0), ("low", 0, MAX_POSITION), ("mid", 1, 5)):
        buffer.admit(event(id_, seq, epoch=epoch))
    assert held(buffer) == ["low", "mid", "big"]
    assert after(buffer, 4, epoch=1) == ["mid", "big"]


def test_an_event_is_held_once_by_source_and_id() -> None:
    buffer = filled(("a", 1))
    assert buffer.admit(event("a", 2)) is None
    assert buffer.admit(event("a", 1, source="aep://host-b/agent/coder")) == (0, 1)
    assert len(buffer) == 2


def test_both_sources_that_share_a_position_are_kept_in_order_of_arrival() -> None:
    buffer = filled(("a", 1))
    buffer.admit(event("b", 1, source="aep://host-b/agent/coder"))
    assert held(buffer) == ["a", "b"]


def test_a_rider_stands_behind_the_entry_it_arrived_after() -> None:
    buffer = filled(("a", 10), ("b", 20), ("back", 15), ("rider", None), ("c", 30))
    assert held(buffer) == ["a", "back", "rider", "b", "c"]


def test_who_resumes_after_a_position_is_replayed_its_riders() -> None:
    buffer = filled(("a", 1), ("r1", None), ("r2", None), ("b", 2))
    assert after(buffer, 1) == ["r1", "r2", "b"]
    assert after(buffer, 0) == ["a", "r1", "r2", "b"]
    assert after(buffer, 2) == []


def test_riders_of_a_session_without_entries_stand_at_its_start() -> None:
    buffer = filled(("r", None), ("a", 0))
    assert held(buffer) == ["r", "a"]
    assert after(buffer, 0) == []


def test_a_rider_of_a_session_that_was_evicted_is_found_by_who_resumes() -> None:
    # A consumer that was sent everything up to 7 has not seen the rider, which came after.
    buffer = SessionBuffer("s", Lost((0, 7), riders=False))
    assert buffer.admit(event("r", None)) == (0, 7)
    assert after(buffer, 7) == ["r"]
    evict(buffer, 1)
    assert exhausted(buffer.lost, (0, 7))


def test_a_rider_whose_entry_is_gone_stands_behind_the_newest() -> None:
    buffer = filled(("a", 10), ("b", 20), ("back", 5))
    evict(buffer, 1)
    buffer.admit(event("r", None))
    assert held(buffer) == ["a", "b", "r"]


@pytest.mark.parametrize(
    ("items", "times", "left", "lost"),
    [
        ([("a", 1), ("b", 2)], 1, ["b"], Lost((0, 1), riders=False)),
        ([("a", 1), ("r", None), ("b", 2)], 1, ["b"], Lost((0, 1), riders=True)),
        ([("r", None), ("a", 1)], 1, ["a"], Lost(START, riders=True)),
        ([("r1", None), ("r2", None)], 2, [], Lost(START, riders=True)),
        # All that is left is one entry: its riders go one at a time, before it does.
        ([("a", 1), ("r1", None), ("r2", None)], 1, ["a", "r2"], Lost((0, 1), riders=True)),
        ([("a", 1), ("r1", None), ("r2", None)], 2, ["a"], Lost((0, 1), riders=True)),
        ([("a", 1), ("r1", None), ("r2", None)], 3, [], Lost((0, 1), riders=True)),
    ],
)
def test_eviction(items: list[tuple[str, int | None]], times: int, left: list[str], lost: Lost) -> None:
    buffer = filled(*items)
    evict(buffer, times)
    assert held(buffer) == left
    assert buffer.lost == lost


def test_riders_of_a_position_that_two_entries_share() -> None:
    buffer = filled(("a", 1), ("r", None))
    buffer.admit(event("b", 1, source="aep://host-b/agent/coder"))
    buffer.admit(event("c", 2))
    evict(buffer, 2)
    # Both entries of position 1 are gone now; that a rider of it is gone must not be forgotten.
    assert buffer.lost == Lost((0, 1), riders=True)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([None, 1, 2, 3, 4]), st.integers(0, 60)), min_size=1, max_size=12),
    st.lists(st.integers(1, 3_000), min_size=1, max_size=4),
    st.integers(0, 2),
)
def test_evicting_much_at_once_is_evicting_the_oldest_again_and_again(
    items: list[tuple[int | None, int]], amounts: list[int], gone_before: int
) -> None:
    at_once, one_by_one = SessionBuffer("s"), SessionBuffer("s")
    for number, (seq, padding) in enumerate(items):
        for buffer in (at_once, one_by_one):
            buffer.admit(event(f"e{number}", seq, source=f"aep:{number}", data={"x": "x" * padding}))
    for buffer in (at_once, one_by_one):
        evict(buffer, min(gone_before, len(buffer)))
    for amount in amounts:
        wanted = at_once.size_bytes - amount
        while at_once.held and at_once.size_bytes > wanted:
            at_once.evict(at_once.size_bytes - wanted)
        while one_by_one.held and one_by_one.size_bytes > wanted:
            one_by_one.evict_oldest()
        assert held(at_once) == held(one_by_one)
        assert (at_once.lost, at_once.size_bytes) == (one_by_one.lost, one_by_one.size_bytes)
        assert at_once.cursor_at_start().lost is at_once.lost


def test_an_event_at_or_below_the_eviction_mark_is_not_admitted() -> None:
    buffer = filled(("a", 5), ("b", 6), ("c", 7))
    evict(buffer, 1)
    assert buffer.admit(event("again", 5)) is None
    assert buffer.admit(event("below", 4)) is None
    assert buffer.admit(event("above", 8)) == (0, 8)


@pytest.mark.parametrize(
    ("position", "is_exhausted"),
    [((0, 0), True), ((0, 1), True), ((0, 2), False), ((0, 9), False), ((1, 0), False)],
)
def test_exhaustion_is_exact(position: Position, is_exhausted: bool) -> None:
    buffer = filled(("a", 1), ("b", 2), ("d", 9))  # 3 to 8 never were: a gap is not exhaustion
    evict(buffer, 2)
    assert exhausted(buffer.lost, position) is is_exhausted
    assert buffer.earliest() == (0, 9)


def test_resuming_at_the_mark_is_exhausted_when_its_riders_are_gone() -> None:
    buffer = filled(("a", 1), ("r", None), ("b", 2))
    evict(buffer, 1)
    assert exhausted(buffer.lost, (0, 1))


@pytest.mark.parametrize(
    ("lost", "earliest"),
    [
        (None, (0, 0)),
        (Lost(START, riders=True), (0, 0)),
        (Lost((3, 7), riders=False), (3, 8)),
        (Lost((3, MAX_POSITION), riders=False), (4, 0)),
    ],
)
def test_earliest_of_what_is_wholly_gone(lost: Lost | None, earliest: Position) -> None:
    assert after_lost(lost) == earliest


def test_a_read_ends_at_whichever_bound_comes_first_but_reads_one_event() -> None:
    buffer = filled(*((f"e{seq}", seq) for seq in range(5)))
    size = len(event("e0", 0).raw)
    cursor = buffer.cursor_at_start()
    events, at_end = buffer.read(cursor, 2, 1 << 30)
    assert ([item.id for item in events], at_end) == (["e0", "e1"], False)
    events, at_end = buffer.read(cursor, 10, size + 1)
    assert ([item.id for item in events], at_end) == (["e2", "e3"], False)
    events, at_end = buffer.read(cursor, 10, 1)
    assert ([item.id for item in events], at_end) == (["e4"], True)


def test_a_cursor_with_an_end_reads_what_is_there_by_then() -> None:
    buffer = filled(("a", 1), ("b", 2))
    cursor = buffer.cursor_at_start()
    cursor.until = buffer.tail()
    buffer.admit(event("r", None))
    buffer.admit(event("c", 3))
    assert rest(buffer, cursor) == ["a", "b", "r"]


def reading(buffer: SessionBuffer, count: int) -> Cursor:
    """A cursor that has read ``count`` Events."""
    cursor = buffer.cursor_at_start()
    buffer.read(cursor, count, 1 << 30)
    return cursor


def test_a_cursor_is_overtaken_when_something_unread_goes() -> None:
    buffer = filled(("a", 1), ("b", 2), ("c", 3), ("d", 4))
    cursor = reading(buffer, 2)
    evict(buffer, 2)
    assert not buffer.overtaken(cursor)
    evict(buffer, 1)
    assert buffer.overtaken(cursor)


def test_a_cursor_at_the_start_is_overtaken_by_any_eviction() -> None:
    buffer = filled(("a", 1), ("b", 2))
    cursor = buffer.cursor_at_start()
    assert not buffer.overtaken(cursor)
    evict(buffer, 1)
    assert buffer.overtaken(cursor)


def test_a_cursor_at_the_start_does_not_mind_what_went_before() -> None:
    buffer = filled(("a", 1), ("b", 2))
    evict(buffer, 1)
    cursor = buffer.cursor_at_start()
    assert not buffer.overtaken(cursor)
    assert rest(buffer, cursor) == ["b"]


def test_a_cursor_notices_riders_that_go_from_behind_the_entry_it_read() -> None:
    buffer = filled(("a", 1), ("r1", None), ("r2", None))
    cursor = reading(buffer, 1)
    evict(buffer, 1)
    assert buffer.overtaken(cursor)


def test_a_cursor_notices_riders_that_went_before_the_entry_it_read_did() -> None:
    buffer = filled(("a", 1), ("r1", None))
    cursor = reading(buffer, 1)
    evict(buffer, 1)
    buffer.admit(event("b", 2))
    evict(buffer, 1)
    assert buffer.overtaken(cursor)


def test_a_cursor_does_not_mind_riders_that_went_before_it_read_their_entry() -> None:
    buffer = filled(("a", 1), ("r1", None))
    evict(buffer, 1)
    buffer.admit(event("b", 2))
    cursor = reading(buffer, 1)
    evict(buffer, 1)
    assert not buffer.overtaken(cursor)
    assert rest(buffer, cursor) == ["b"]


def test_a_cursor_on_a_rider_does_not_mind_that_rider_going_nor_reads_its_entry_again() -> None:
    buffer = filled(("a", 1), ("r1", None), ("r2", None))
    cursor = reading(buffer, 2)
    evict(buffer, 1)
    assert not buffer.overtaken(cursor)
    assert rest(buffer, cursor) == ["r2"]


def test_a_cursor_before_an_event_reads_it_next() -> None:
    buffer = filled(("a", 1), ("b", 2), ("d", 4))
    late = event("c", 3)
    key = buffer.admit(late)
    assert key is not None
    cursor = buffer.cursor_before(late, key)
    assert cursor is not None
    assert rest(buffer, cursor) == ["c", "d"]


def test_there_is_no_cursor_before_an_event_that_went_at_once() -> None:
    buffer = filled(("b", 2), ("c", 3))
    back = event("a", 1)
    key = buffer.admit(back)
    assert key is not None
    evict(buffer, 1)
    assert buffer.cursor_before(back, key) is None


def test_a_cursor_before_the_first_event_notices_that_it_went() -> None:
    buffer = SessionBuffer("s")
    first = event("a", 1)
    key = buffer.admit(first)
    assert key is not None
    cursor = buffer.cursor_before(first, key)
    assert cursor is not None
    buffer.admit(event("b", 2))
    evict(buffer, 1)
    assert buffer.overtaken(cursor)


def test_where_a_rider_is_held_is_known_without_a_scan() -> None:
    class Counted(list[Any]):
        looked_at = 0

        def __getitem__(self, index: Any) -> Any:
            self.looked_at += 1
            return super().__getitem__(index)

    buffer = filled(("a", 1))
    riders = [event(f"r{number}") for number in range(1000)]
    keys = [buffer.admit(rider) for rider in riders]
    items = buffer._items = Counted(buffer._items)
    assert [buffer.key_of(rider) for rider in riders] == keys
    assert buffer.key_of(event("r7")) is None, "another delivery of it"
    assert items.looked_at <= 20 * len(riders)


def test_what_a_cursor_awaits() -> None:
    buffer = filled(("a", 1), ("b", 2), ("c", 3))
    cursor = reading(buffer, 2)
    assert not buffer.awaits(cursor, event("b", 2), (0, 2))
    assert buffer.awaits(cursor, event("c", 3), (0, 3))
    # Another delivery of it would overtake what is unread before it just as well.
    assert buffer.awaits(cursor, event("c", 3, capture="none"), (0, 3))
    # The same id at another place is not what the cursor will read.
    assert not buffer.awaits(cursor, event("a", 3), (0, 3))
    # What was requested after is skipped, so it is not awaited.
    assert not buffer.awaits(Cursor((0, 3), after=(0, 3)), event("c", 3), (0, 3))


def test_the_front_moves_without_copying_each_time() -> None:
    buffer = filled(*((f"e{seq}", seq) for seq in range(200)))
    evict(buffer, 150)
    assert held(buffer) == [f"e{seq}" for seq in range(150, 200)]
    assert len(buffer._items) < 200, "what was evicted is let go of now and then"
    assert not any(item.id < "e150" for item in buffer._items if len(item.id) == 4)


def test_evicted_events_are_not_kept_alive() -> None:
    import gc
    import weakref

    class Tracer:
        pass

    buffer = filled(*((f"e{seq}", seq) for seq in range(10)))
    cursor = reading(buffer, 5)
    traced = buffer._items[4]
    probe = Tracer()
    traced.variants = {0: probe}  # type: ignore[dict-item]  # any object that can be watched
    seen = weakref.ref(probe)
    del probe, traced
    evict(buffer, 6)
    gc.collect()
    assert cursor.last is not None
    assert seen() is None


steps = st.lists(
    st.one_of(
        st.tuples(st.just("entry"), st.integers(0, 6)),
        st.tuples(st.just("rider"), st.just(0)),
        st.tuples(st.just("evict"), st.just(0)),
        st.tuples(st.just("start"), st.just(0)),
        st.tuples(st.just("after"), st.integers(0, 6)),
        st.tuples(st.just("read"), st.integers(1, 3)),
    ),
    min_size=5,
    max_size=60,
)


@settings(max_examples=250)
@given(steps=steps)
def test_cursors_against_the_model(steps: list[tuple[str, int]]) -> None:
    """Several cursors, whatever is admitted and evicted around them, read what the naive ones have unread."""
    store = NaiveStore(Limits())
    buffer = SessionBuffer("s")
    cursors: list[tuple[Cursor, NaiveCursor]] = []
    for number, (step, value) in enumerate(steps):
        if step in ("entry", "rider"):
            _admit(store, buffer, cursors, event(f"e{number}", value if step == "entry" else None))
        elif step == "evict" and len(buffer) > 1:
            evict(buffer, 1)
            for item in store._evict("s"):
                for _, naive in cursors:
                    naive.evicted(item)
        elif step == "start":
            cursors.append((buffer.cursor_at_start(), NaiveCursor(None, set(store.held("s")))))
        elif step == "after":
            position = (0, value)
            naive = NaiveCursor(position, {item for item in store.held("s") if follows(item, position)})
            naive.overtaken = store.exhausted("s", position)
            cursors.append((Cursor(position, after=position), naive))
        elif step == "read":
            cursors = [pair for pair in cursors if not _read(store, buffer, *pair, value)]
        assert held(buffer) == [item.event.id for item in store.held("s")]
        assert buffer.earliest() == store.earliest("s")
        assert [buffer.key_of(item.event) for item in store.held("s")] == [
            item.key for item in store.held("s")
        ]
        assert len(buffer._rider_keys) == sum(item.event.position is None for item in store.held("s"))
        assert [buffer.overtaken(cursor) for cursor, _ in cursors] == [
            naive.overtaken for _, naive in cursors
        ]


def _admit(
    store: NaiveStore, buffer: SessionBuffer, cursors: list[tuple[Cursor, NaiveCursor]], admitted: Event
) -> None:
    key, item = buffer.admit(admitted), store.insert(admitted)
    assert key == (None if item is None else item.key)
    for cursor, naive in cursors:
        if item is not None:
            naive.inserted(item, store.held("s"))
            if not naive.overtaken:
                assert buffer.awaits(cursor, admitted, item.key) is (item in naive.unread)


def _read(
    store: NaiveStore, buffer: SessionBuffer, cursor: Cursor, naive: NaiveCursor, max_events: int
) -> bool:
    """Read on through both; say whether the end was reached."""
    assert buffer.overtaken(cursor) is naive.overtaken
    if naive.overtaken:
        assert buffer.lost is not None
        cursor.key, cursor.last, cursor.after, cursor.lost = buffer.lost.position, None, None, buffer.lost
        naive.skip_lost(store.held("s"))
    wanted = naive.next_items(store.held("s"), lambda _: True)
    events, at_end = buffer.read(cursor, max_events, 1 << 30)
    assert [item.id for item in events] == [item.event.id for item in wanted[: len(events)]]
    assert at_end or len(events) < len(wanted)
    assert not at_end or len(events) == len(wanted)
    for item in store.held("s"):
        if item.event.key is cursor.last:
            naive.read_through(item, store.held("s"))
    return at_end
