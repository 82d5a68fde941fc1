from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import trio
import trio.testing

from aep_relay.config import Config, Operator
from aep_relay.ops import health, observer
from aep_relay.ops.observer import BUCKETS_SECONDS, MAX_SAMPLES, WINDOW_TICKS, Observer
from aep_relay.ops.overview import rates
from tests.ops.observed import Observation


def test_the_worst_tick_counts_until_it_is_out_of_the_window() -> None:
    found = Observer(Observation())
    assert found.latency_seconds == 0
    found.tick(0.7)
    for _ in range(WINDOW_TICKS - 1):
        found.tick(0.001)
    assert found.latency_seconds == 0.7
    found.tick(0.001)
    assert found.latency_seconds == 0.001


def test_ticks_are_counted_by_how_late_they_were() -> None:
    found = Observer(Observation())
    for late in (0.0, BUCKETS_SECONDS[0], 0.002, 99.0):
        found.tick(late)
    assert found.late_counts[0] == 2
    assert found.late_counts[1] == 1
    assert found.late_counts[-1] == 1
    assert found.late_seconds_total == pytest.approx(99.003)


async def test_it_measures_and_samples_as_time_passes(autojump_clock: trio.testing.MockClock) -> None:
    service = Observation()
    found = Observer(service, trio.current_time)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(found.run)
        await trio.sleep(1)
        service.relay.stats.received_events = 100
        await trio.sleep(4)
        nursery.cancel_scope.cancel()
    assert sum(found.late_counts) >= 45
    assert [sample[1] for sample in found.samples] == [0, 100, 100]


async def test_an_idle_process_is_let_sleep(autojump_clock: trio.testing.MockClock) -> None:
    busy = False
    found = Observer(Observation(), lambda: trio.current_time() if busy else 0.0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(found.run)
        await trio.sleep(20.05)
        assert 20 <= sum(found.late_counts) <= 22
        busy = True
        await trio.sleep(2)
        assert sum(found.late_counts) >= 30
        nursery.cancel_scope.cancel()


def test_an_idle_tick_stands_for_those_left_out() -> None:
    found = Observer(Observation())
    found.tick(0.7)
    for _ in range(WINDOW_TICKS // 10):
        assert found.latency_seconds == 0.7
        found.tick(0.001, 10)
    assert found.latency_seconds == 0.001


def test_history_is_bounded() -> None:
    found = Observer(Observation())
    for number in range(2 * MAX_SAMPLES):
        found.sample(float(number))
    assert len(found.samples) == MAX_SAMPLES


def test_rates_are_per_second_and_aged() -> None:
    samples = [(10.0, 0, 0, 0, 0), (12.0, 10, 40, 2, 0), (12.0, 11, 40, 2, 0), (14.0, 11, 40, 2, 0)]
    assert rates(samples, 15.0) == [[3.0, 5.0, 20.0, 1.0], [1.0, 0.0, 0.0, 0.0]]


def unready(service: Observation) -> None:
    service.addresses = []


def draining(service: Observation) -> None:
    service.draining = True


def upstream(problem: str | None, service: Observation) -> None:
    service.checks["upstream hub"] = lambda: problem


@pytest.mark.parametrize(
    ("change", "failing"),
    [
        (unready, "listener"),
        (draining, "draining"),
        (partial(upstream, "not connected"), "upstream hub"),
        (partial(upstream, None), None),
    ],
)
def test_readiness_names_the_check_that_fails(
    change: Callable[[Observation], None], failing: str | None
) -> None:
    service = Observation()
    change(service)
    document = health.readiness(Observer(service))
    checks = document["checks"]
    assert isinstance(checks, dict)
    assert [name for name, problem in checks.items() if problem != "ok"] == ([failing] if failing else [])
    assert document["ready"] is (failing is None)


def test_a_late_loop_is_not_ready() -> None:
    found = Observer(Observation(Config(operator=Operator(max_loop_latency_seconds=0.2))))
    found.tick(0.2)
    assert health.is_ready(found)
    found.tick(0.21)
    assert not health.is_ready(found)


def test_the_window_is_what_the_page_says() -> None:
    window_seconds = observer.WINDOW_TICKS * observer.TICK_SECONDS
    history_seconds = observer.MAX_SAMPLES * observer.SAMPLE_SECONDS
    assert (window_seconds, history_seconds) == (10, 600)
