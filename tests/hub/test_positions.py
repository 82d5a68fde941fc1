"""Tracks of delivered positions, against the list of everything that was delivered."""

from __future__ import annotations

from typing import TYPE_CHECKING

import hypothesis.strategies as st
import pytest
from hypothesis import given

from aep_relay.hub.positions import MAX_TRACK_PAIRS, after, before, extend, higher, highest_since
from aep_relay.protocol.position import MAX_POSITION

if TYPE_CHECKING:
    from aep_relay.hub.positions import Track
    from aep_relay.protocol.position import Position

positions = st.tuples(st.integers(0, 2), st.integers(0, 9))


def track_of(delivered: list[Position]) -> Track | None:
    """The track of these positions, delivered at stamps from 1."""
    track: Track | None = None
    for stamp, position in enumerate(delivered, 1):
        track = extend(track, stamp, position)
    return track


@given(delivered=st.lists(positions, max_size=MAX_TRACK_PAIRS), since=st.integers(0, 20))
def test_the_highest_since_a_stamp(delivered: list[Position], since: int) -> None:
    assert highest_since(track_of(delivered), since) == max(delivered[since:], default=None)


@given(delivered=st.lists(positions, min_size=1, max_size=80))
def test_a_track_stays_short_in_any_order(delivered: list[Position]) -> None:
    track = track_of(delivered)
    assert track is not None
    assert len(track) <= MAX_TRACK_PAIRS
    stamps = [stamp for stamp, _ in track]
    pairs = [position for _, position in track]
    assert stamps == sorted(stamps)
    assert pairs == sorted(pairs, reverse=True)


@given(since=st.integers(0, 60), length=st.integers(1, 60))
def test_a_track_that_was_cut_errs_on_the_safe_side(since: int, length: int) -> None:
    delivered = [(0, 1000 - number) for number in range(length)]
    found = highest_since(track_of(delivered), since)
    exact = max(delivered[since:], default=None)
    assert found is exact is None or (found is not None and exact is not None and found <= exact)
    assert highest_since(track_of(delivered), 0) == (0, 1000)


def test_in_order_a_track_is_one_pair() -> None:
    assert track_of([(0, 1), (0, 2), (1, 0)]) == ((3, (1, 0)),)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [(None, None, None), ((0, 0), None, (0, 0)), (None, (0, 0), (0, 0)), ((0, 9), (1, 0), (1, 0))],
)
def test_higher(one: Position | None, other: Position | None, expected: Position | None) -> None:
    assert higher(one, other) == expected


@pytest.mark.parametrize(
    ("position", "expected"),
    [((3, 5), (3, 4)), ((3, 0), (2, MAX_POSITION)), ((0, 0), None), ((-1, 0), None)],
)
def test_the_position_before(position: Position, expected: Position | None) -> None:
    assert before(position) == expected


@given(position=positions)
def test_nothing_stands_between_a_position_and_the_pair_after_it(position: Position) -> None:
    assert after(position) > position
    assert before(after(position)) == position
