"""What a connection may do: the grants of the token it presented, and their narrowing (AEP-0003 §8.2).

Authorization is the deployment's policy. On a relay without tokens, observation and emission are open to whoever
reaches it; commands need an authenticated connection always, localhost included (AEP-0004).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from aep_relay.protocol.errors import Refusal

if TYPE_CHECKING:
    from aep_relay.protocol.event import Event
    from aep_relay.protocol.filters import Filter


@dataclass(frozen=True, slots=True)
class Patterns:
    """Names that are allowed: each pattern is a name in which ``*`` stands for any run of characters."""

    patterns: tuple[str, ...]

    def match(self, name: str | None) -> bool:
        """Say whether one of the patterns matches ``name``; an absent name matches none."""
        return name is not None and any(_matches(pattern, name) for pattern in self.patterns)


MAX_SEARCHED_CHARS: Final = 1024
"""A longer name is not searched for what a pattern has between two stars: it does not match."""


@lru_cache(maxsize=4096)
def _parts(pattern: str) -> tuple[str, ...]:
    """Return what stands between the stars of ``pattern``."""
    return tuple(pattern.split("*"))


def _matches(pattern: str, name: str) -> bool:
    """Match without backtracking: names come from outside and may be long."""
    first, *rest = _parts(pattern)
    if not rest:
        return name == pattern
    last = rest.pop()
    if rest and len(name) > MAX_SEARCHED_CHARS:
        return False
    if not name.startswith(first) or not name.endswith(last) or len(name) < len(first) + len(last):
        return False
    at, end = len(first), len(name) - len(last)
    for part in rest:
        found = name.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True


@dataclass(frozen=True, slots=True)
class Grants:
    """What one token grants; None stands for "not narrowed" throughout."""

    authenticated: bool
    """Whether a token was presented and held good."""
    emit: bool = True
    consume: bool = True
    control: bool = False
    operate: bool = False
    name: str = ""
    """The token's name, for logs and listings."""
    agents: Patterns | None = None
    """Whose Events it may emit and consume."""
    sessions: Patterns | None = None
    """Of which sessions, and to which it may send commands."""
    commands: Patterns | None = None
    """The types of command it may send."""
    ceiling: int | None = None
    """Capture rank that bounds each of its subscriptions."""
    events_per_second: float | None = None
    """What all its connections together may emit."""
    max_connections: int | None = None
    """How many streams and sockets it may hold at once."""

    @property
    def emits_all(self) -> bool:
        """Whether any Event that is no command may be emitted."""
        return self.emit and self.agents is None and self.sessions is None

    def refuse_event(self, event: Event) -> Refusal | None:
        """Say why ``event``, which is no command, may not be emitted; None when it may."""
        if not self.emit:
            return Refusal("unauthorized", "this token may not emit")
        if self.agents is not None and not self.agents.match(event.agent):
            return Refusal("unauthorized", "this token may not emit Events of this agent")
        if self.sessions is not None and event.session is not None and not self.sessions.match(event.session):
            return Refusal("unauthorized", "this token may not emit Events of this session")
        return None

    def may_command(self, event: Event) -> bool:
        """Say whether the command ``event`` may be sent, as its sender and to its session."""
        return (
            self.authenticated
            and self.control
            and (self.commands is None or self.commands.match(event.type))
            and (self.sessions is None or self.sessions.match(event.session))
            and (self.agents is None or self.agents.match(event.agent))
        )

    def may_observe(self, event: Event) -> bool:
        """Say whether ``event`` may be delivered under this token."""
        if self.agents is not None and not self.agents.match(event.agent):
            return False
        return self.sessions is None or event.session is None or self.sessions.match(event.session)

    @property
    def sees_all(self) -> bool:
        """Whether nothing is hidden under this token."""
        return self.agents is None and self.sessions is None

    def may_see(self, session: str) -> bool:
        """Say whether ``session`` may be known of under this token."""
        return self.sessions is None or self.sessions.match(session)

    def may_meet(self, session: str, agent: str | None) -> bool:
        """Say whether it may be known under this token that ``agent`` emits ``session``."""
        return self.may_see(session) and (self.agents is None or self.agents.match(agent))

    def may_appear_as(self, agent: str | None) -> bool:
        """Say whether an emitter may call itself ``agent`` (AEP-0003 §4 rule 3)."""
        return self.agents is None or self.agents.match(agent)

    def narrow(self, filter_: Filter) -> Filter:
        """Return ``filter_`` brought down to what may be seen under this token."""
        if self.sees_all:
            return filter_
        patterns = sum(len(each.patterns) for each in (self.agents, self.sessions) if each is not None)
        return filter_.narrowed(f"{self.agents} {self.sessions}", self.may_observe, patterns)

    def bound(self, ceiling: int | None) -> int | None:
        """Return ``ceiling`` brought down to the token's own."""
        if self.ceiling is None or ceiling is None:
            return self.ceiling if ceiling is None else ceiling
        return min(ceiling, self.ceiling)


ANONYMOUS = Grants(authenticated=False)
"""Of a connection to a relay that has no token."""

FULL = Grants(authenticated=True, control=True, operate=True, name="default")
"""Of the one token of a relay that has no policy."""
