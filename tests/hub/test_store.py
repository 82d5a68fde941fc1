"""All buffers together: common bounds, who pays for them, and what is remembered of sessions that are gone."""

from __future__ import annotations

import dataclasses
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from aep_relay.hub.limits import Limits
from aep_relay.hub.store import Store
from aep_relay.protocol.event import HELD_OVERHEAD_BYTES
from tests.hub.build import event, exhausted
from tests.hub.model import NaiveStore, size_bytes

ITEM_BYTES = len(event("e00", 10).raw) + HELD_OVERHEAD_BYTES
"""What one of the Events below is charged."""


def store(**limits: Any) -> Store:
    return Store(dataclasses.replace(Limits(), **limits))


def put(held: Store, session: str, *seqs: int) -> None:
    for seq in seqs:
        held.admit(event(f"e{seq:02}", seq, session=session))


def held_ids(held: Store, session: str) -> list[str]:
    buffer = held.get(session)
    return (
        [] if buffer is None else [item.id for item in buffer.read(buffer.cursor_at_start(), 99, 1 << 30)[0]]
    )


def test_a_session_is_bounded_by_events() -> None:
    held = store(buffer_events=3)
    put(held, "s", 10, 11, 12, 13, 14)
    assert held_ids(held, "s") == ["e12", "e13", "e14"]
    assert (held.events, held.evicted_events, held.size_bytes) == (3, 2, 3 * ITEM_BYTES)


def test_riders_count_toward_the_bound_of_their_session() -> None:
    held = store(buffer_events=3)
    put(held, "s", 10)
    for number in range(5):
        held.admit(event(f"r{number}"))
    # The only entry stays, with the newest of its riders: a flood of riders cannot evict it.
    assert held_ids(held, "s") == ["e10", "r3", "r4"]
    assert exhausted(held.lost("s"), (0, 10))


def test_a_session_is_bounded_by_bytes() -> None:
    held = store(max_session_bytes=2 * ITEM_BYTES)
    put(held, "s", 10, 11)
    assert held.events == 2
    put(held, "s", 12)
    assert held_ids(held, "s") == ["e11", "e12"]


def test_all_sessions_together_are_bounded_by_bytes_at_the_cost_of_the_one_written_longest_ago() -> None:
    held = store(max_buffer_bytes=4 * ITEM_BYTES)
    put(held, "a", 10, 11)
    put(held, "b", 10, 11)
    put(held, "a", 12)
    assert held_ids(held, "b") == ["e11"]
    put(held, "a", 13, 14)
    assert held_ids(held, "b") == []
    assert held_ids(held, "a") == ["e11", "e12", "e13", "e14"]
    assert exhausted(held.lost("b"), (0, 10))
    assert held.earliest("b") == (0, 12)
    assert list(held) == ["a"]


def test_an_event_larger_than_every_bound_leaves_nothing_and_is_remembered_as_lost() -> None:
    held = store(max_session_bytes=ITEM_BYTES)
    put(held, "s", 10)
    assert held.admit(event("big", 11, data={"text": "x" * 1000})) == (0, 11)
    assert len(held) == held.size_bytes == held.events == 0
    assert exhausted(held.lost("s"), (0, 10))
    assert not exhausted(held.lost("s"), (0, 11))


def test_more_sessions_than_allowed_evict_the_one_written_longest_ago() -> None:
    held = store(max_sessions=2)
    put(held, "a", 10)
    put(held, "b", 10)
    put(held, "a", 11)
    put(held, "c", 10)
    assert list(held) == ["a", "c"]
    assert exhausted(held.lost("b"), (0, 9))
    assert not exhausted(held.lost("b"), (0, 10))


def test_a_long_name_is_remembered_at_the_cost_of_a_short_one() -> None:
    held = store(max_sessions=1)
    one, other = "x" * 10_000 + "1", "x" * 10_000 + "2"
    put(held, one, 10)
    put(held, other, 20)
    put(held, "short", 1)
    assert exhausted(held.lost(one), (0, 9))
    assert (held.earliest(one), held.earliest(other)) == ((0, 11), (0, 21))
    assert sum(map(len, held._gone)) < 200
    put(held, one, 10, 11)
    assert held_ids(held, one) == ["e11"], "what was evicted is not taken in again"
    assert held.lost("x" * 10_000) is None


def test_a_redelivery_is_no_writing() -> None:
    held = store(max_sessions=2)
    put(held, "a", 10)
    put(held, "b", 10)
    put(held, "a", 10)  # held already
    put(held, "c", 10)
    assert list(held) == ["b", "c"]


def test_a_session_that_comes_back_knows_what_is_gone() -> None:
    held = store(max_sessions=1)
    put(held, "a", 10)
    put(held, "b", 10)
    assert held.admit(event("e09", 9, session="a")) is None
    assert list(held) == ["b"], "what is not admitted evicts nobody"
    put(held, "a", 11)
    assert exhausted(held.lost("a"), (0, 9))
    assert not exhausted(held.lost("a"), (0, 10))


def test_the_memory_of_gone_sessions_is_bounded() -> None:
    held = store(max_sessions=1, max_evicted_sessions=2)
    for name in "abcd":
        put(held, name, 10)
    assert not exhausted(held.lost("a"), (0, 0)), "forgotten"
    assert exhausted(held.lost("b"), (0, 0))
    assert exhausted(held.lost("c"), (0, 0))
    assert len(held._gone) == 2


def test_agent_scoped_events_are_not_held() -> None:
    held = store()
    assert held.admit(event("a", session=None, type="agent.online")) is None
    assert not len(held)


def test_earliest_of_a_session_nobody_wrote() -> None:
    assert store().earliest("s") == (0, 0)
    assert not exhausted(store().lost("s"), (0, 0))


LIMITS = [
    {},
    {"buffer_events": 3},
    {"buffer_events": 4, "max_sessions": 2},
    {"max_session_bytes": 3 * ITEM_BYTES},
    {"max_buffer_bytes": 5 * ITEM_BYTES},
    {"buffer_events": 3, "max_buffer_bytes": 6 * ITEM_BYTES, "max_sessions": 2},
]
arrivals = st.lists(
    st.tuples(
        st.integers(0, 15),
        st.sampled_from("abc"),
        st.one_of(st.none(), st.tuples(st.sampled_from([0, 2**62]), st.integers(0, 5))),
        st.sampled_from([0, 0, 900]),
    ),
    max_size=60,
)


@settings(max_examples=150)
@given(limits=st.sampled_from(LIMITS), arrivals=arrivals)
def test_store_against_the_model(
    limits: dict[str, int], arrivals: list[tuple[int, str, tuple[int, int] | None, int]]
) -> None:
    held = store(**limits)
    naive = NaiveStore(held.limits)
    for number, session, position, padding in arrivals:
        epoch, seq = (None, None) if position is None else position
        admitted = event(f"e{number}", seq, epoch=epoch, session=session, data={"text": "x" * padding})
        item, key = naive.insert(admitted), held.admit(admitted)
        if item is not None:
            list(naive.enforce(session))
        assert key == (None if item is None else item.key)
        _compare(held, naive)


def _compare(held: Store, naive: NaiveStore) -> None:
    assert list(held) == list(naive.sessions)
    for session in "abc":
        assert held_ids(held, session) == [item.event.id for item in naive.held(session)]
        assert held.earliest(session) == naive.earliest(session)
        for position in [(-1, -1), (0, 0), (0, 3), (0, 5), (2**62, 2)]:
            assert exhausted(held.lost(session), position) == naive.exhausted(session, position)
    assert held.size_bytes == sum(map(size_bytes, naive.sessions.values()))
    assert held.events == sum(map(len, naive.sessions.values()))
    assert held.evicted_events == sum(map(len, naive.evicted.values()))
    assert held.size_bytes <= held.limits.max_buffer_bytes


@pytest.mark.parametrize("session", ["a", "\0", "a\nb", "ü:1"])
def test_any_session_name_is_a_name(session: str) -> None:
    held = store()
    put(held, session, 10)
    assert held_ids(held, session) == ["e10"]
