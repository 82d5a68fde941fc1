"""One side of a pipe by the stdio transport's rules: what a line of input means, and what is answered.

Invariants: each line is an Event to be taken in, or the session's own matter, or is rejected; what goes to the other
side goes through ``out`` and what is wrong goes through ``err``, each a whole line; ``session.ready`` is said once, and
``session.closed`` only in a session that is open. Transport binding stdio, AEP 0.1: Session Lifecycle, Error Handling.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from aep_relay.protocol import stdio_session
from aep_relay.protocol.stdio import VERSION, StdioError, session_of
from aep_relay.protocol.stdio_session import Session, Signal, State

if TYPE_CHECKING:
    from collections.abc import Callable

    from aep_relay.protocol.event import Event
    from aep_relay.protocol.intake import Intake
    from aep_relay.protocol.jsonl import OverlongLine
    from aep_relay.protocol.stdio import StdioEvent
    from aep_relay.protocol.stdio_session import Stamp

    Out = Callable[[bytes], None]


LIFECYCLE = frozenset(
    {"session.opened", "session.ready", "session.heartbeat", "session.closed", "session.error"}
)
"""Lines that are of interest to the two ends of a pipe alone."""


class _Opening(msgspec.Struct, gc=False):
    version: str = VERSION


_read_opening = msgspec.json.Decoder(_Opening).decode


class Conversation:
    """The process's side: it answers ``session.opened`` that comes on its standard input."""

    def __init__(
        self, intake: Intake, out: Out, err: Out, stamp: Callable[[], Stamp], *, max_payload_bytes: int
    ) -> None:
        self.session = Session()
        self.session_id: str | None = None
        """Of the session that was opened; None before that."""
        self.intake = intake
        self._out = out
        self._err = err
        self._stamp = stamp
        self._max_payload_bytes = max_payload_bytes
        self._number: int | None = None
        """Of the line that was taken last, if it is known."""

    @property
    def speaks_stdio(self) -> bool:
        """Whether the other side has opened a session, and so speaks this dialect."""
        return self.session_id is not None

    def take(self, line: bytes | OverlongLine, number: int | None = None) -> Event | None:
        """Return the Event that ``line`` brings in, None if it brings none. Raises nothing.

        ``number`` is the line's, for its rejection.
        """
        self._number = number
        try:
            taken = self.intake.take(line)
            if taken is None:
                return None
            if taken.stdio is not None and taken.stdio.type in LIFECYCLE:
                self._lifecycle(taken.stdio)
                return None
        except StdioError as error:
            self.reject(error)
            return None
        return taken.event

    def reject(self, error: StdioError) -> None:
        """Refuse the line that was taken last, on standard error."""
        if self._number is not None:
            error.details = {**(error.details or {}), "line": self._number}
        self._err(stdio_session.event_rejected(self._stamp(), error))

    def _lifecycle(self, event: StdioEvent) -> None:
        if event.type == "session.opened":
            self._opened(event)
        elif event.type == "session.closed":
            self.session.advance(Signal.CLOSE)
        elif event.type == "session.error":
            self.session.advance(Signal.FAIL)

    def _opened(self, event: StdioEvent) -> None:
        session_id = session_of(event)
        try:
            version = _read_opening(event.payload).version
        except (ValueError, RecursionError):
            raise StdioError("invalid_envelope", "the payload opens no session", event_id=event.id) from None
        if session_id is None:
            raise StdioError("invalid_envelope", "session_id is missing", event_id=event.id)
        if version != VERSION:
            details = {"versions": [VERSION]}
            raise StdioError(
                "unsupported_version", "this version is not supported", event_id=event.id, details=details
            )
        self.session.advance(Signal.OPEN)
        self.session_id = session_id
        capabilities = stdio_session.capabilities(self._max_payload_bytes)
        self._out(stdio_session.session_ready(self._stamp(), session_id, capabilities))
        self.session.advance(Signal.ANSWER)

    def end(self, reason: str | None = None) -> None:
        """End in order, because the input has ended or this side does: say so if the session is open."""
        if self.session_id is not None and self.session.state in (State.OPENED, State.READY):
            self._out(stdio_session.session_closed(self._stamp(), self.session_id, reason))
        self.session.advance(Signal.END_OF_INPUT)

    def fail(self, error: StdioError) -> None:
        """End with an error, on standard error: standard output takes no more."""
        if self.session_id is not None and not self.session.is_over:
            self._err(stdio_session.session_error(self._stamp(), self.session_id, error))
        else:
            self._err(stdio_session.event_rejected(self._stamp(), error))
        self.session.advance(Signal.FAIL)
