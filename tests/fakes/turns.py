"""Turns that are over at once, and counted."""

from __future__ import annotations

import pytest

from aep_relay.transport import turn
from aep_relay.transport.turn import Turn


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
