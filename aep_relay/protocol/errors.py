"""Everything that can be wrong with what a peer sent, with its wire code, HTTP status and safe detail.

Exceptions are for malformed input only; expected outcomes (a limit hit, a command without a route) are
returned as a :class:`Refusal`. Invariants: a ``code`` is one of the protocol's or HTTP binding's error
codes; a ``detail`` is printable, bounded and may be shown to the peer and logged. AEP-0003 §3.2, §3.5,
§6.5.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

MAX_DETAIL_CHARS = 300
"""Longer details are cut: they quote what the peer sent."""

_MAX_QUOTED_CHARS = 60


def safe_text(text: str, max_chars: int = MAX_DETAIL_CHARS) -> str:
    """Return ``text`` cut to ``max_chars`` characters, with unprintable characters escaped as
    ``\\xNN``/``\\uNNNN``."""
    cut = text if len(text) <= max_chars else text[: max_chars - 1] + "…"
    if cut.isprintable():
        return cut
    escaped = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in cut)
    return escaped if len(escaped) <= max_chars else escaped[: max_chars - 1] + "…"


def quoted(text: str) -> str:
    """Return ``text`` in double quotes, short and printable, for use inside a detail."""
    return f'"{safe_text(text, _MAX_QUOTED_CHARS)}"'


class ProtocolError(Exception):
    """Malformed input. ``code`` goes on the wire, ``http_status`` into the status line, ``detail`` to the
    peer."""

    code = "protocol-error"
    http_status = 400

    def __init__(self, detail: str) -> None:
        self.detail = safe_text(detail)
        super().__init__(self.detail)


class InvalidEvent(ProtocolError):
    """Not a valid Event envelope (AEP-0001 §5).

    ``event_id`` is the Event's ``id`` if it has exactly one valid one, else ``None``. ``index`` is the
    0-based line of a batch, else ``None``.
    """

    code = "invalid-event"

    def __init__(self, detail: str, *, event_id: str | None = None, index: int | None = None) -> None:
        super().__init__(detail if index is None else f"line {index}: {detail}")
        self.event_id = event_id
        self.index = index


class EventTooLarge(InvalidEvent):
    """One Event larger than ``max_event_bytes``."""

    http_status = 413


class BatchTooLarge(ProtocolError):
    """More Events in one request than ``max_batch_events``."""

    code = "limit-exceeded"
    http_status = 413


class BadJson(ProtocolError):
    """A WebSocket text that is not one JSON object."""

    code = "bad-json"


class InvalidFilter(ProtocolError):
    """A malformed ``filter`` or ``from``, or a filter key that cannot be filtered on (AEP-0003 §6.2,
    §6.5)."""

    code = "invalid-filter"


class FilterTooLarge(InvalidFilter):
    """A filter beyond what the relay evaluates; the detail names the limit (AEP-0003 §6.5)."""

    code = "limit-exceeded"


class InvalidParameter(ProtocolError):
    """A malformed request parameter, named by ``parameter`` (AEP-0003 §3.3)."""

    code = "invalid-parameter"

    def __init__(self, parameter: str, detail: str) -> None:
        super().__init__(f"{parameter}: {detail}")
        self.parameter = safe_text(parameter, _MAX_QUOTED_CHARS)


class HelloRequired(ProtocolError):
    """The first frame was not a ``hello`` (AEP-0003 §3.5)."""

    code = "hello-required"


class VersionUnsupported(ProtocolError):
    """No protocol version in common (AEP-0003 §3.2, §4); ``versions`` are the ones supported here."""

    code = "version-unsupported"
    http_status = 426

    def __init__(self, detail: str, versions: tuple[str, ...] = ("0.1",)) -> None:
        super().__init__(detail)
        self.versions = versions


class InvalidFrame(ProtocolError):
    """A known frame with members that are missing, doubled or of the wrong type (AEP-0003 §2)."""

    code = "invalid-frame"


class Unauthorized(ProtocolError):
    """No token, or a wrong one (AEP-0003 §8)."""

    code = "unauthorized"
    http_status = 401


class Forbidden(ProtocolError):
    """Known, and not allowed: a command by POST, for one (AEP-0003 §3.2)."""

    code = "unauthorized"
    http_status = 403


@dataclass(frozen=True, slots=True)
class Refusal:
    """An expected outcome that the peer is told about: returned, never raised."""

    code: str
    detail: str = field(default="")

    def __post_init__(self) -> None:
        object.__setattr__(self, "detail", safe_text(self.detail))


_REFUSAL_STATUS = {
    "invalid-filter": 400,
    "unknown-dialect": 400,
    "unauthorized": 403,
    "no-route": 404,
    "ambiguous": 409,
    "unsupported": 409,
    "limit-exceeded": 429,
}
"""HTTP status of each refusal code, where the refusal answers a request."""


def http_status(problem: ProtocolError | Refusal) -> int:
    """Return the HTTP status that answers ``problem``."""
    if isinstance(problem, ProtocolError):
        return problem.http_status
    return _REFUSAL_STATUS.get(problem.code, 400)


def http_body(problem: ProtocolError | Refusal) -> bytes:
    """Return the JSON body of the HTTP answer: ``error`` and ``detail``, and what the class adds (AEP-0003
    §3.2)."""
    body: dict[str, object] = {"error": problem.code, "detail": problem.detail}
    if isinstance(problem, InvalidEvent) and problem.index is not None:
        body["index"] = problem.index
    elif isinstance(problem, InvalidParameter):
        body["parameter"] = problem.parameter
    elif isinstance(problem, VersionUnsupported):
        body["versions"] = problem.versions
    return msgspec.json.encode(body)


def frame(
    problem: ProtocolError | Refusal, *, id: str | None = None, cause: str | None = None
) -> dict[str, object]:
    """Return the ``error`` frame for ``problem`` as a JSON object (AEP-0003 §6.5, AEP-0004 §4).

    ``id`` echoes a request's id; ``cause`` names the refused Event and defaults to an invalid Event's own id.
    """
    if cause is None and isinstance(problem, InvalidEvent):
        cause = problem.event_id
    members: dict[str, object] = {"type": "error"}
    if id is not None:
        members["id"] = id
    if cause is not None:
        members["cause"] = cause
    members["code"] = problem.code
    members["detail"] = problem.detail
    if isinstance(problem, VersionUnsupported):
        members["versions"] = list(problem.versions)
    return members
