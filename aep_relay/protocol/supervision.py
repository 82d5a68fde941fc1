"""The supervisor's side of a pipe: what a line of a process's output means, and what is said when it ends.

Invariants: an Event of the process passes as it is, a line of the stdio dialect as it is mapped; ``session.ended`` is
made for a process that did not say it, at a position after all that it said. Transport binding stdio, AEP 0.1: Session
Lifecycle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from aep_relay.protocol.conversation import LIFECYCLE
from aep_relay.protocol.event import decode
from aep_relay.protocol.position import MAX_POSITION
from aep_relay.protocol.stdio import Dialect, StdioError
from aep_relay.protocol.stdio_session import Session, Signal

if TYPE_CHECKING:
    from collections.abc import Callable

    from aep_relay.protocol.event import Event
    from aep_relay.protocol.intake import Intake
    from aep_relay.protocol.jsonl import OverlongLine
    from aep_relay.protocol.position import Position
    from aep_relay.protocol.stdio import StdioEvent
    from aep_relay.protocol.stdio_session import Stamp

COMPLAINTS = frozenset({"event.rejected", "session.error"})
"""What a process may say on standard error."""

_write = msgspec.json.Encoder().encode


class Supervised:
    """One run of a process, which emits ``session`` as ``agent``."""

    def __init__(
        self, intake: Intake, session: str, agent: str, epoch: int, refused: Callable[[StdioError], None]
    ) -> None:
        self.session = Session()
        self.name = session
        self.dialect: Dialect | None = None
        """What the process speaks, None as long as it has said nothing."""
        self.has_ended = False
        """Whether it said itself that its session has ended."""
        self._agent = agent
        self.intake = intake
        self._refused = refused
        self._last: Position = (epoch, -1)

    def take(self, line: bytes | OverlongLine) -> Event | None:
        """Return the Event that ``line`` brings in, None if it brings none. Raises nothing."""
        try:
            taken = self.intake.take(line)
            if taken is None:
                return None
            if taken.stdio is not None:
                self.dialect = Dialect.STDIO
                if taken.stdio.type in LIFECYCLE:
                    self._lifecycle(taken.stdio)
                    return None
            else:
                self.dialect = Dialect.AEP
        except StdioError as error:
            self._refused(error)
            return None
        event = taken.event
        if event.session == self.name and event.position is not None:
            # An emitter counts its epochs as it likes: the first of its Events says from where.
            self._last = event.position if self._last[1] < 0 else max(self._last, event.position)
            self.has_ended = event.type == "session.ended"
        return event

    def _lifecycle(self, event: StdioEvent) -> None:
        if event.type == "session.ready":
            self.session.advance(Signal.ANSWER)
        elif event.type == "session.closed":
            self.session.advance(Signal.CLOSE)
        elif event.type == "session.error":
            self.session.advance(Signal.FAIL)
            self._refused(StdioError("session_error", "the process reports an error of its session"))

    def ended(self, code: int, duration_seconds: float, stamp: Stamp) -> Event | None:
        """Return what is to be said of a process that ended with ``code``, negative for a signal; None for nothing."""
        self.session.advance(Signal.CRASH if code else Signal.EXIT)
        epoch, seq = self._last
        if self.has_ended or seq >= MAX_POSITION:
            return None
        return decode(
            _write(
                {
                    "aep": "0.1",
                    "id": stamp.id,
                    "type": "session.ended",
                    "time": stamp.created_at,
                    "source": stamp.source,
                    "agent": self._agent,
                    "session": self.name,
                    "seq": seq + 1,
                    "epoch": epoch,
                    "severity": "error" if code else "info",
                    "data": {
                        "reason": "killed" if code < 0 else "error" if code else "normal",
                        "duration_ms": round(duration_seconds * 1000),
                    },
                }
            )
        )


def complaint(line: bytes) -> tuple[str, str, str] | None:
    """Return type, code and message of an ``event.rejected`` or ``session.error`` on standard error, else None."""
    if not line.lstrip().startswith(b"{"):
        return None
    try:
        found = msgspec.json.decode(line, type=_Complaint)
    except (ValueError, RecursionError):
        return None
    if found.type not in COMPLAINTS:
        return None
    return found.type, found.payload.error.code, found.payload.error.message


class _Error(msgspec.Struct, frozen=True, gc=False):
    code: str = ""
    message: str = ""


class _Payload(msgspec.Struct, frozen=True, gc=False):
    error: _Error = _Error()


class _Complaint(msgspec.Struct, frozen=True, gc=False):
    type: str
    payload: _Payload = _Payload()
