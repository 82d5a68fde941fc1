"""What the process asks of the system and of the interpreter."""

from __future__ import annotations

import gc
import resource
from collections.abc import Iterator

import pytest
import trio
from trio.testing import MockClock

from aep_relay import process


@pytest.fixture
def descriptor_limit() -> Iterator[tuple[int, int]]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield before
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.fixture
def collector() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


def test_the_descriptor_limit_is_raised_to_its_hard_limit(descriptor_limit: tuple[int, int]) -> None:
    _, hard = descriptor_limit
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    raised = process.raise_descriptor_limit()
    assert raised == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert raised == (process.UNLIMITED_DESCRIPTORS if hard == resource.RLIM_INFINITY else hard)


def test_young_garbage_is_still_collected(collector: None) -> None:
    process.collect_rarely()
    collections = gc.get_stats()[0]["collections"]
    kept = [[] for _ in range(10_000)]  # type: list[list[object]]
    assert len(kept) == 10_000
    assert gc.get_stats()[0]["collections"] > collections
    assert gc.get_threshold()[2] == process.NEVER


async def test_old_garbage_is_collected_now_and_then(collector: None, autojump_clock: MockClock) -> None:
    process.collect_rarely()
    full = gc.get_stats()[2]["collections"]
    with trio.move_on_after(process.COLLECT_SECONDS * 2.5):
        await process.collect_now_and_then()
    assert gc.get_stats()[2]["collections"] in (full + 1, full + 2)
