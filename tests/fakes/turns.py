"""Turns that are over at once and counted, and Events that are taken for large ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aep_relay.hub import burst
from aep_relay.hub.fanout import FanOut
from aep_relay.transport import large, turn
from aep_relay.transport.turn import Turn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aep_relay.protocol.event import Event


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Have every turn be over at once, and note each time that a task lets others have theirs.

    For what takes less than can be told from a slow machine's noise.
    """
    passed: list[None] = []
    pass_on = Turn.pass_on

    async def noted(self: Turn) -> None:
        passed.append(None)
        await pass_on(self)

    monkeypatch.setattr(turn, "TURN_SECONDS", 0.0)
    monkeypatch.setattr(Turn, "pass_on", noted)
    return passed


@pytest.fixture
def set_aside(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What is computed in a worker: here of 500 bytes and more."""
    monkeypatch.setattr(large, "LARGE_BYTES", 500)
    found: list[bytes] = []
    aside = large.aside

    async def noted(compute: Callable[[bytes], object], data: bytes) -> object:
        found.append(data)
        return await aside(compute, data)

    monkeypatch.setattr(large, "aside", noted)
    return found


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids of Events that were taken in in steps: here those of 500 bytes and more."""
    assert burst.MAX_BYTES <= large.LARGE_BYTES
    monkeypatch.setattr(large, "LARGE_BYTES", 500)
    monkeypatch.setattr(burst, "MAX_BYTES", 500)
    found: list[str] = []
    prepare = FanOut.prepare

    def noted(self: FanOut, event: Event) -> Iterator[None]:
        found.append(event.id)
        return prepare(self, event)

    monkeypatch.setattr(FanOut, "prepare", noted)
    return found
