"""The one timer."""

from __future__ import annotations

import gc
import weakref

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


class Watched:
    """Is due every ``interval_seconds``."""

    def __init__(self, deadlines: Deadlines, deadline: float, interval_seconds: float) -> None:
        self.deadline = deadline
        self.interval_seconds = interval_seconds
        self.expired_at: list[float] = []
        deadlines.watch(self)

    def fall_due(self, now: float) -> None:
        assert now == trio.current_time()
        self.expired_at.append(now)
        self.deadline = now + self.interval_seconds


async def test_what_is_watched_is_called_whenever_it_is_due(autojump_clock: MockClock) -> None:
    deadlines = Deadlines()
    often, seldom = Watched(deadlines, 2, 2), Watched(deadlines, 5, 30)
    await run_for(deadlines, 40)
    assert seldom.expired_at == [pytest.approx(6), pytest.approx(37)]
    assert len(often.expired_at) == pytest.approx(13, abs=1)
    assert all(late - early >= 2 for early, late in zip(often.expired_at, often.expired_at[1:], strict=False))


async def test_a_deadline_that_was_moved_is_kept(autojump_clock: MockClock) -> None:
    deadlines = Deadlines()
    later, sooner = Watched(deadlines, 3, 100), Watched(deadlines, 50, 100)
    later.deadline = 20
    sooner.deadline = 5
    deadlines.watch(sooner)
    await run_for(deadlines, 60)
    assert later.expired_at == [pytest.approx(21)]
    assert sooner.expired_at == [pytest.approx(6)]


async def test_what_is_forgotten_is_not_called(autojump_clock: MockClock) -> None:
    deadlines = Deadlines()
    watched = Watched(deadlines, 3, 1)
    deadlines.forget(watched)
    await run_for(deadlines, 10)
    assert watched.expired_at == []


async def test_nothing_is_held_of_what_is_forgotten(autojump_clock: MockClock) -> None:
    deadlines = Deadlines()
    watched = Watched(deadlines, 10, 30)
    watched.deadline = 3
    deadlines.watch(watched)
    deadlines.forget(watched)
    gone = weakref.ref(watched)
    del watched
    gc.collect()
    assert gone() is None


class Restless(Watched):
    """Watches itself anew or forgets itself when it is due, and takes others with it."""

    def __init__(self, deadlines: Deadlines, deadline: float) -> None:
        super().__init__(deadlines, deadline, 5)
        self.deadlines = deadlines
        self.others: list[Watched] = []

    def fall_due(self, now: float) -> None:
        super().fall_due(now)
        for other in self.others:
            self.deadlines.forget(other)
        self.deadlines.watch(self)


async def test_what_is_due_may_watch_and_forget(autojump_clock: MockClock) -> None:
    deadlines = Deadlines()
    first, second = Restless(deadlines, 2.5), Restless(deadlines, 2.5)
    first.others, second.others = [second], [first]
    alone = Restless(deadlines, 2.5)
    alone.others = [alone]
    await run_for(deadlines, 20)
    assert sorted([first.expired_at, second.expired_at]) == [[], [3, 9, 15]]
    assert alone.expired_at == [3, 9, 15]


async def test_what_ends_when_it_is_due_is_not_called_again(autojump_clock: MockClock) -> None:
    class Ending(Watched):
        def fall_due(self, now: float) -> None:
            super().fall_due(now)
            deadlines.forget(self)

    deadlines = Deadlines()
    ending = Ending(deadlines, 2, 2)
    await run_for(deadlines, 20)
    assert ending.expired_at == [3]
    assert not deadlines._watched


async def test_others_get_a_turn_while_many_are_due(autojump_clock: MockClock) -> None:
    deadlines = Deadlines()
    many = [Watched(deadlines, 0.5, 100) for _ in range(2_000)]
    seen = []

    async def watch() -> None:
        await trio.sleep(SWEEP_SECONDS)
        for _ in range(15):
            seen.append(sum(1 for watched in many if watched.expired_at))
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_for, deadlines, 2)
        nursery.start_soon(watch)
    assert len({count for count in seen if 0 < count < 2_000}) >= 5
    assert all(len(watched.expired_at) == 1 for watched in many)
