"""The one timer."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from aep_relay.transport.deadlines import SWEEP_SECONDS, Deadlines


class Waiter:
    def __init__(self, deadlines: Deadlines, deadline: float, *, leaves: bool = True) -> None:
        self.deadlines = deadlines
        self.deadline = deadline
        self.expired_at: list[float] = []
        self.leaves = leaves
        self.others: list[Waiter] = []
        deadlines.waiting.add(self)

    def expire(self) -> None:
        self.expired_at.append(trio.current_time())
        if self.leaves:
            self.deadlines.waiting.discard(self)
        for other in self.others:
            self.deadlines.waiting.discard(other)


async def run_for(deadlines: Deadlines, seconds: float) -> None:
    with trio.move_on_after(seconds):
        await deadlines.run()


async def test_each_is_expired_when_it_is_late_and_not_before(autojump_clock: MockClock) -> None:
    deadlines = Deadlines()
    waiters = [Waiter(deadlines, deadline) for deadline in (0.5, 3, 3.5, 100)]
    await run_for(deadlines, 10)
    times = [waiter.expired_at for waiter in waiters]
    assert times == [[pytest.approx(1)], [pytest.approx(3)], [pytest.approx(4)], []]
    assert deadlines.waiting == {waiters[3]}


async def test_one_that_goes_on_waiting_is_expired_again(autojump_clock: MockClock) -> None:
    deadlines = Deadlines()
    waiter = Waiter(deadlines, 2, leaves=False)
    await run_for(deadlines, 5.5)
    assert len(waiter.expired_at) == int((5.5 - 2) / SWEEP_SECONDS) + 1


async def test_one_that_left_during_the_sweep_is_let_be(autojump_clock: MockClock) -> None:
    deadlines = Deadlines()
    first, second = Waiter(deadlines, 1), Waiter(deadlines, 1)
    first.others, second.others = [second], [first]
    await run_for(deadlines, 5)
    assert len(first.expired_at) + len(second.expired_at) == 1


async def test_others_get_a_turn_during_a_long_sweep(autojump_clock: MockClock) -> None:
    deadlines = Deadlines()
    waiters = [Waiter(deadlines, 0.5) for _ in range(10_000)]
    seen = []

    async def watch() -> None:
        await trio.sleep(SWEEP_SECONDS)
        for _ in range(10):
            seen.append(sum(1 for waiter in waiters if waiter.expired_at))
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_for, deadlines, 2)
        nursery.start_soon(watch)
    assert len({count for count in seen if 0 < count < 10_000}) >= 2
    assert all(len(waiter.expired_at) == 1 for waiter in waiters)
