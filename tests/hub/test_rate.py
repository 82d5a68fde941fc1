"""How many Events may come: on average the rate, at once a second's worth, and any batch some time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aep_relay.hub.rate import Rate


def test_a_second_s_worth_comes_at_once() -> None:
    rate = Rate(10, now=5.0)
    for _ in range(10):
        assert rate.wait_seconds(5.0) == 0.0
        assert rate.spend(1, 5.0) == 0.0
    assert rate.wait_seconds(5.0) == pytest.approx(0.1)
    assert rate.wait_seconds(5.05) == pytest.approx(0.05)
    assert rate.wait_seconds(5.1) == 0.0


def test_no_more_than_a_second_s_worth_is_saved_up() -> None:
    rate = Rate(10, now=0.0)
    assert rate.spend(11, 1000.0) == pytest.approx(0.1)


def test_a_slow_rate_allows_one_event() -> None:
    rate = Rate(0.1, now=0.0)
    assert rate.wait_seconds(0.0) == 0.0
    assert rate.spend(1, 0.0) == 0.0
    assert rate.wait_seconds(0.0) == pytest.approx(10.0)
    assert rate.wait_seconds(10.0) == 0.0


def test_a_batch_of_any_size_comes_in_and_is_paid_for_afterwards() -> None:
    rate = Rate(10, now=0.0)
    assert rate.spend(1000, 0.0) == pytest.approx(99.0)
    assert rate.wait_seconds(0.0) == pytest.approx(99.1)
    assert rate.wait_seconds(99.1) == 0.0


def test_another_rate_keeps_what_is_overdrawn() -> None:
    rate = Rate(10, now=0.0)
    rate.spend(30, 0.0)
    rate.change(20, 1.0)
    assert rate.spend(0, 1.0) == pytest.approx(0.5)
    rate.change(1, 100.0)
    assert rate.spend(1, 100.0) == 0.0
    assert rate.wait_seconds(100.0) == pytest.approx(1.0)


@given(
    per_second=st.floats(0.01, 1000),
    inputs=st.lists(st.tuples(st.integers(1, 500), st.floats(0, 10)), max_size=40),
)
def test_on_average_the_rate_holds(per_second: float, inputs: list[tuple[int, float]]) -> None:
    rate, now, taken, last = Rate(per_second, 0.0), 0.0, 0, 0
    for events, later in inputs:
        now += later
        if rate.wait_seconds(now) == 0.0:
            rate.spend(events, now)
            taken += events
            last = events
            # All but the last input was paid for before it came.
            assert taken - last <= per_second * now + max(1.0, per_second) + 0.001


@given(per_second=st.floats(0.01, 1000), events=st.integers(1, 10_000))
def test_after_the_wait_the_next_one_may_come(per_second: float, events: int) -> None:
    rate = Rate(per_second, 0.0)
    rate.spend(events, 0.0)
    assert rate.wait_seconds(rate.wait_seconds(0.0)) == 0.0
