"""What the peers of the soak share: the relay, chance, the sessions there are, and what they count."""

from __future__ import annotations

import random
from collections import Counter

import trio

from ..process import Server
from .ledger import Session, Tally
from .lines import Line

_KEPT = 5
"""Failures of a kind that are told in full."""


class Scene:
    """One run's."""

    def __init__(self, server: Server, randomness: random.Random) -> None:
        self.server = server
        self.randomness = randomness
        self.tokens = [server.token]
        """The one that grants everything, and, when there is one, another one that is changed now and then."""
        self.pace = 0.3
        """How fast emitters go: 1 for ten bursts a second each."""
        self.emitting = True
        self._over = trio.Event()
        self.sessions: dict[str, Session] = {}
        """Those that are being emitted."""
        self.tally = Tally()
        self.counts: Counter[str] = Counter()
        self.failures: list[str] = []
        self.sessions_made = 0

    @property
    def going(self) -> bool:
        """Whether peers are to stay."""
        return not self._over.is_set()

    def end(self) -> None:
        """Have everybody get what is missing, and leave."""
        self._over.set()

    async def stay(self, seconds: float) -> None:
        """Sleep, but not beyond the end."""
        with trio.move_on_after(seconds):
            await self._over.wait()

    def new_session(self) -> Session:
        """Return a session that nobody has emitted yet."""
        self.sessions_made += 1
        session = Session(f"soak{self.sessions_made}")
        self.sessions[session.name] = session
        return session

    def fail(self, kind: str, text: str) -> None:
        """Note what must not be."""
        self.counts[kind] += 1
        if self.counts[kind] <= _KEPT:
            self.failures.append(f"{kind}: {text}")

    def chance(self, share: float) -> bool:
        """Return whether what happens with this probability does."""
        return self.randomness.random() < share

    async def pause(self, low_seconds: float, high_seconds: float) -> None:
        """Sleep for a random time."""
        await trio.sleep(self.randomness.uniform(low_seconds, high_seconds))

    def leave(self, connection: Line) -> None:
        """Have a connection that is about to end be torn, now and then."""
        if self.chance(0.3):
            self.counts["resets"] += 1
            connection.reset()
