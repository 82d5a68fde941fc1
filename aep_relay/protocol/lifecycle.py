"""What the Events of a history say about one another: order, identities, and what has to come to an end.

For who checks a history as a whole; the relay itself takes Events in any order. Two Events that can't both be right
are an error. What the protocol allows and yet is seldom meant (a backfill, an Event after the end of its run) is a
warning, what is merely still open is a note. Memory grows with the number of Events. AEP-0001 §7; AEP-0002 §3.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

from aep_relay.protocol.errors import quoted
from aep_relay.protocol.event import Event, Shape
from aep_relay.protocol.position import Position
from aep_relay.protocol.registry import is_command
from aep_relay.protocol.schema import Finding, Level

RUN_TERMINALS: Final = frozenset({"run.finished", "run.failed", "run.cancelled"})
TOOL_TERMINALS: Final = frozenset({"tool.completed", "tool.failed", "tool.denied"})
ATTENTION_TERMINALS: Final = frozenset({"attention.resolved", "attention.timeout"})
ACKNOWLEDGEMENTS: Final = frozenset({"control.accepted", "control.rejected"})

Numbered = tuple[int, Finding]
"""A finding and the line it is about."""


@dataclass(slots=True)
class _Session:
    """One session of one source, as far as it has come. What is open is known by the line it began in."""

    highest: Position | None = None
    highest_line: int = 0
    positions: dict[Position, int] = field(default_factory=dict)
    ended: tuple[int, Position] | None = None
    runs: dict[str, int] = field(default_factory=dict)
    ended_runs: dict[str, tuple[int, Position, str]] = field(default_factory=dict)
    tools: dict[str, int] = field(default_factory=dict)
    questions: dict[str, int] = field(default_factory=dict)


class Lifecycle:
    """Takes a history's Events in, line by line."""

    def __init__(self) -> None:
        self._sessions: dict[tuple[str, str], _Session] = {}
        self._ids: dict[tuple[str, str], tuple[int, bytes]] = {}
        self._commands: dict[str, int] = {}

    def take(self, line: int, event: Event, call_id: str | None = None) -> list[Finding]:
        """Return what is to be said about ``event``, in ``line``, after what came before.

        ``call_id`` is the payload's ``tool.call_id``.
        """
        known = self._ids.get(event.key)
        digest = blake2b(event.raw, digest_size=16).digest()
        if known is None:
            self._ids[event.key] = (line, digest)
        elif known[1] == digest:
            return [Finding(Level.NOTE, f"the same Event as in line {known[0]}: a redelivery", "id")]
        else:
            return [
                Finding(Level.ERROR, f"is the id of another Event of this source, in line {known[0]}", "id")
            ]
        findings = list(self._acknowledgement(line, event))
        if event.shape is Shape.SESSION and event.session is not None and event.position is not None:
            session = self._sessions.setdefault((event.source, event.session), _Session())
            findings += _order(session, line, event, event.position)
            findings += _ends(session, line, event, event.position)
            _track(session, line, event, call_id)
        return findings

    def finish(self) -> list[Numbered]:
        """Return what is still open at the end, by the line it began in."""
        found: list[Numbered] = []
        for (_, name), session in self._sessions.items():
            level = Level.NOTE if session.ended is None else Level.WARNING
            whole = "" if session.ended is None else f", and session {quoted(name)} has ended"
            for kind, open_ in (
                ("run", session.runs),
                ("tool call", session.tools),
                ("question", session.questions),
            ):
                for id_, line in open_.items():
                    found.append((line, Finding(level, f"{kind} {quoted(id_)} comes to no end{whole}")))
        for id_, line in self._commands.items():
            found.append((line, Finding(Level.NOTE, f"command {quoted(id_)} is not acknowledged")))
        return sorted(found, key=lambda item: item[0])

    def _acknowledgement(self, line: int, event: Event) -> Iterator[Finding]:
        if is_command(event.type):
            self._commands[event.id] = line
        elif event.type in ACKNOWLEDGEMENTS:
            if event.cause is None:
                yield Finding(Level.ERROR, "an acknowledgement names its command", "cause")
            else:
                self._commands.pop(event.cause, None)


def _order(session: _Session, line: int, event: Event, position: Position) -> Iterator[Finding]:
    taken = session.positions.setdefault(position, line)
    if taken != line:
        yield Finding(Level.ERROR, f"this position is that of another Event, in line {taken}", "seq")
    if session.highest is None or position > session.highest:
        session.highest, session.highest_line = position, line
    elif taken == line:
        epoch, seq = session.highest
        text = f"comes after epoch {epoch}, seq {seq} in line {session.highest_line}: a backfill, or out of order"
        yield Finding(Level.WARNING, text, "seq")


def _ends(session: _Session, line: int, event: Event, position: Position) -> Iterator[Finding]:
    ended = session.ended
    if ended is not None and position > ended[1] and event.type not in ("session.started", "session.ended"):
        if position[0] == ended[1][0]:
            yield Finding(Level.WARNING, f"the session has ended in line {ended[0]}", "session")
    elif ended is not None and event.type == "session.ended" and position[0] == ended[1][0]:
        yield Finding(Level.ERROR, f"the session has ended in line {ended[0]} already", "type")
    if event.type == "session.ended" and ended is None:
        session.ended = (line, position)
    elif event.type == "session.started":
        session.ended = None
    if event.run is None or event.run not in session.ended_runs:
        return
    end_line, end, end_type = session.ended_runs[event.run]
    if event.type in RUN_TERMINALS:
        yield Finding(Level.ERROR, f"the run has had its {end_type} in line {end_line}", "run")
    elif event.type == "run.started":
        yield Finding(
            Level.ERROR, f"the run has begun before, and had its {end_type} in line {end_line}", "run"
        )
    elif position > end:
        yield Finding(Level.WARNING, f"the run has had its {end_type} in line {end_line}", "run")


def _track(session: _Session, line: int, event: Event, call_id: str | None) -> None:
    """Note what ``event`` begins and what it ends."""
    type_, run = event.type, event.run
    if run is not None:
        if type_ == "run.started":
            session.runs[run] = line
        elif type_ in RUN_TERMINALS and event.position is not None:
            session.runs.pop(run, None)
            session.ended_runs.setdefault(run, (line, event.position, type_))
    if call_id is not None:
        if type_ == "tool.requested":
            session.tools[call_id] = line
        elif type_ in TOOL_TERMINALS:
            session.tools.pop(call_id, None)
    if type_ == "attention.requested":
        session.questions[event.id] = line
    elif type_ in ATTENTION_TERMINALS and event.subject is not None:
        session.questions.pop(event.subject, None)
