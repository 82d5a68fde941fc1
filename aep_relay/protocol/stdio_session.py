"""The life of a session on a pipe: its states, and the lines that a side of the pipe writes about it.

Owns the states as one table, and the builders of ``session.*`` and ``event.rejected`` lines. Time and ids come from
the caller. Invariant: a final state is left by nothing. Transport binding stdio, AEP 0.1: Session Lifecycle, Error
Handling.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec

from aep_relay.protocol.stdio import VERSION, StdioError

_write = msgspec.json.Encoder().encode


class State(Enum):
    """The states of a session, which are those of the process at the end of the pipe."""

    CREATED = "created"
    OPENED = "opened"
    READY = "ready"
    CLOSED = "closed"
    ERROR = "error"


class Signal(Enum):
    """What happens to a session."""

    OPEN = "session.opened on stdin"
    ANSWER = "session.ready on stdout"
    CLOSE = "session.closed"
    FAIL = "session.error"
    EXIT = "exit with status 0"
    CRASH = "exit with another status, or a signal"
    END_OF_INPUT = "stdin closed"
    BROKEN_PIPE = "broken pipe on stdout"


_ENDINGS = {
    Signal.CLOSE: State.CLOSED,
    Signal.FAIL: State.ERROR,
    Signal.EXIT: State.CLOSED,
    Signal.CRASH: State.ERROR,
    Signal.END_OF_INPUT: State.CLOSED,
    Signal.BROKEN_PIPE: State.CLOSED,
}
TRANSITIONS: Final[Mapping[tuple[State, Signal], State]] = MappingProxyType(
    {
        (State.CREATED, Signal.OPEN): State.OPENED,
        (State.OPENED, Signal.ANSWER): State.READY,
    }
    | {
        (state, signal): ending
        for state in (State.CREATED, State.OPENED, State.READY)
        for signal, ending in _ENDINGS.items()
    }
    | {(state, signal): state for state in (State.CLOSED, State.ERROR) for signal in _ENDINGS}
)
"""Every transition there is. The first ending counts: what ends a session that has ended changes nothing."""


class Session:
    """One session of a pipe, in one of the states."""

    def __init__(self) -> None:
        self.state = State.CREATED

    @property
    def is_over(self) -> bool:
        """Whether the state is final."""
        return self.state in (State.CLOSED, State.ERROR)

    def advance(self, signal: Signal) -> State:
        """Take ``signal`` in and return the state after it.

        Raises :class:`StdioError`, the state unchanged, for what the state does not admit: ``session_closed`` once the
        session is over, else ``session_error``.
        """
        following = TRANSITIONS.get((self.state, signal))
        if following is None:
            code = "session_closed" if self.is_over else "session_error"
            raise StdioError(code, f"{signal.value} in a session that is {self.state.value}")
        self.state = following
        return following


class Stamp(NamedTuple):
    """What distinguishes an Event that this side makes: its id, its time (RFC 3339), and who made it."""

    id: str
    created_at: str
    source: str


def capabilities(
    max_payload_bytes: int | None = None, heartbeat_interval_seconds: float | None = None
) -> dict[str, object]:
    """Return the capabilities that ``session.ready`` declares."""
    declared: dict[str, object] = {"protocol": "aep", "aep_version": VERSION, "transports": ["stdio"]}
    if max_payload_bytes is not None:
        declared["max_payload_size"] = max_payload_bytes
    if heartbeat_interval_seconds is not None:
        declared["heartbeat_interval_ms"] = round(heartbeat_interval_seconds * 1000)
    return declared


def line(stamp: Stamp, type_: str, payload: object, session_id: str | None = None) -> bytes:
    """Return one Event of this dialect as a line, its ``\\n`` included, to be written at once."""
    event = {
        "aep_version": VERSION,
        "id": stamp.id,
        "type": type_,
        "source": stamp.source,
        "created_at": stamp.created_at,
    }
    if session_id is not None:
        event["session_id"] = session_id
    return _write({**event, "payload": payload}) + b"\n"


def session_opened(stamp: Stamp, session_id: str) -> bytes:
    """Return the line that opens a session."""
    return line(stamp, "session.opened", {"session_id": session_id, "version": VERSION}, session_id)


def session_ready(stamp: Stamp, session_id: str, declared: Mapping[str, object]) -> bytes:
    """Return the line that answers ``session.opened`` with this side's ``capabilities``."""
    payload = {"session_id": session_id, "capabilities": dict(declared)}
    return line(stamp, "session.ready", payload, session_id)


def session_heartbeat(stamp: Stamp, session_id: str) -> bytes:
    """Return the line that says that a session is alive."""
    return line(stamp, "session.heartbeat", {"session_id": session_id}, session_id)


def session_closed(stamp: Stamp, session_id: str, reason: str | None = None) -> bytes:
    """Return the line that ends a session in order."""
    payload = {"session_id": session_id} | ({} if reason is None else {"reason": reason})
    return line(stamp, "session.closed", payload, session_id)


def session_error(stamp: Stamp, session_id: str, error: StdioError) -> bytes:
    """Return the line that ends a session with an error."""
    return line(stamp, "session.error", {"session_id": session_id, "error": error.value()}, session_id)


def event_rejected(stamp: Stamp, error: StdioError) -> bytes:
    """Return the line that refuses one line of input."""
    payload: dict[str, object] = {"error": error.value()}
    if error.event_id is not None:
        payload["event_id"] = error.event_id
    return line(stamp, "event.rejected", payload)
