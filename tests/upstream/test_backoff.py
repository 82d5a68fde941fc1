"""Pauses between attempts: spread over the whole range, doubling, bounded; short again only after a stable period."""

from __future__ import annotations

from aep_relay.upstream.backoff import Backoff


def pauses(backoff: Backoff, count: int) -> list[float]:
    return [backoff.next_seconds() for _ in range(count)]


def test_bounds_double_up_to_the_longest() -> None:
    many = [pauses(Backoff(0.5, 30, 30), 12) for _ in range(400)]
    for number in range(12):
        bound = min(30, 0.5 * 2**number)
        found = [pause[number] for pause in many]
        assert 0.9 * bound < max(found) <= bound
        assert min(found) < 0.1 * bound
        assert 0.4 * bound < sum(found) / len(found) < 0.6 * bound


def test_only_a_link_that_held_begins_anew() -> None:
    backoff = Backoff(0.5, 30, 30)
    pauses(backoff, 10)
    backoff.held(29.9)
    assert backoff.failures == 10
    backoff.held(30)
    assert backoff.failures == 0
    assert backoff.next_seconds() <= 0.5


def test_a_thousand_failures_do_no_harm() -> None:
    assert max(pauses(Backoff(0.5, 30, 30), 5000)) <= 30


def test_where_only_an_operator_helps_it_waits_long() -> None:
    backoff = Backoff(0.5, 30, 30)
    found = [backoff.slow_seconds() for _ in range(100)]
    assert min(found) >= 30
    assert max(found) <= 60
