"""The stdio dialect: lines with ``aep_version``, and its error model.

Owns which dialect a line belongs to, the envelope of the stdio transport, and the errors that answer a line. The life
of a session is ``stdio_session``'s matter; how an Event of this dialect becomes one of AEP-0001 and back is
``dialect``'s. Invariant: :func:`decode` raises :class:`StdioError` and nothing else. Transport binding stdio, AEP
0.1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Final

import msgspec

from aep_relay.protocol.errors import (
    BadJson,
    Forbidden,
    InvalidEvent,
    ProtocolError,
    Refusal,
    Unauthorized,
    VersionUnsupported,
    quoted,
)
from aep_relay.protocol.grammar import is_time
from aep_relay.protocol.jsontext import WHITESPACE, JsonError, check_structure, members

VERSION: Final = "0.1"
"""The only value of ``aep_version``."""

TYPE: Final = re.compile(r"[a-z][a-z0-9]*(?:\.[a-z][a-z0-9_]*)+")

ERROR_CODES: Final[Mapping[str, bool]] = MappingProxyType(
    {
        "invalid_envelope": False,
        "invalid_event_type": False,
        "unsupported_version": False,
        "protocol_error": False,
        "internal_error": True,
        "session_error": False,
        "session_timeout": True,
        "session_closed": False,
        "unauthorized": False,
    }
)
"""The codes of errors, and whether trying again can help."""

_REQUIRED_TEXTS = ("id", "source", "created_at")
_OPTIONAL_TEXTS = (
    "target",
    "topic",
    "session_id",
    "conversation_id",
    "task_id",
    "correlation_id",
    "causation_id",
)  # fmt: skip


class StdioError(ProtocolError):
    """What is wrong with a line or a session: ``code`` is one of ``ERROR_CODES``, ``detail`` the message.

    ``event_id`` is the id of the Event at fault if it has a valid one; ``details`` are further facts for a machine.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        event_id: str | None = None,
        details: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.event_id = event_id
        self.details = details

    def value(self) -> dict[str, object]:
        """Return the error as the JSON object that goes on the wire."""
        error: dict[str, object] = {
            "code": self.code,
            "message": self.detail,
            "retryable": ERROR_CODES[self.code],
        }
        if self.details is not None:
            error["details"] = dict(self.details)
        return error


def error_for(problem: ProtocolError | Refusal) -> StdioError:
    """Return ``problem``, whatever the relay's other bindings call it, in this dialect's error model."""
    if isinstance(problem, StdioError):
        return problem
    if isinstance(problem, InvalidEvent):
        return StdioError("invalid_envelope", problem.detail, event_id=problem.event_id)
    if isinstance(problem, (Unauthorized, Forbidden)) or problem.code == "unauthorized":
        return StdioError("unauthorized", problem.detail)
    if isinstance(problem, VersionUnsupported):
        return StdioError("unsupported_version", problem.detail, details={"versions": list(problem.versions)})
    if isinstance(problem, BadJson):
        return StdioError("protocol_error", problem.detail)
    return StdioError("protocol_error", f"{problem.code}: {problem.detail}")


def line_too_long(max_payload_bytes: int) -> StdioError:
    """Return the error for a line beyond the negotiated ``max_payload_size``."""
    return StdioError(
        "invalid_envelope",
        f"a line is at most {max_payload_bytes} bytes",
        details={"max_payload_size": max_payload_bytes},
    )


class Dialect(Enum):
    """What a line of JSON is."""

    AEP = "aep"
    """An AEP-0001 Event, valid or not: it says ``aep``."""
    STDIO = "aep_version"
    """An Event of the stdio dialect, valid or not: it says ``aep_version``, and not ``aep``."""
    NEITHER = "neither"


class _Marks(msgspec.Struct, gc=False):
    aep: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    aep_version: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_read_marks = msgspec.json.Decoder(_Marks).decode
_read_value = msgspec.json.Decoder().decode


def classify(line: bytes) -> Dialect:
    """Tell which dialect a line belongs to. What is no JSON object is ``NEITHER``. Never raises."""
    try:
        marks = _read_marks(line)
    except (ValueError, RecursionError):
        return Dialect.NEITHER
    if marks.aep is not msgspec.UNSET:
        return Dialect.AEP
    return Dialect.NEITHER if marks.aep_version is msgspec.UNSET else Dialect.STDIO


@dataclass(frozen=True, slots=True)
class StdioEvent:
    """One valid Event of the stdio dialect. ``payload`` and ``delivery`` are JSON values as they are spelled."""

    id: str
    type: str
    source: str
    created_at: str
    payload: msgspec.Raw
    target: str | None = None
    topic: str | None = None
    session_id: str | None = None
    conversation_id: str | None = None
    task_id: str | None = None
    correlation_id: str | None = None
    causation_id: str | None = None
    expires_at: str | None = None
    delivery: msgspec.Raw | None = None


def decode(line: bytes, max_payload_bytes: int) -> StdioEvent:
    """Return the Event that ``line`` holds. Members that the dialect does not know are ignored.

    Raises :class:`StdioError`: ``protocol_error`` for what is no JSON, ``unsupported_version``,
    ``invalid_event_type``, and ``invalid_envelope`` for the rest.
    """
    if len(line) > max_payload_bytes:
        raise line_too_long(max_payload_bytes)
    pairs = _members(line)
    found = dict(pairs)
    event_id: str | None = None
    try:
        if len(found) != len(pairs):
            raise JsonError("a member occurs twice")
        event_id = _text(found, "id")
        _check_version(found, event_id)
        type_ = _text(found, "type")
        if TYPE.fullmatch(type_) is None:
            raise StdioError("invalid_event_type", f"type {quoted(type_)} is malformed", event_id=event_id)
        return _event(found, type_)
    except (JsonError, msgspec.DecodeError) as error:
        raise StdioError("invalid_envelope", str(error), event_id=event_id) from None


def _members(line: bytes) -> list[tuple[str, bytes]]:
    line = line.strip(WHITESPACE)
    try:
        line.decode()
        check_structure(line)
        pairs = members(line)
    except UnicodeDecodeError:
        raise StdioError("protocol_error", "not UTF-8") from None
    except msgspec.ValidationError:
        raise StdioError("invalid_envelope", "not a JSON object") from None
    except RecursionError:
        raise StdioError("protocol_error", "nested too deep") from None
    except (JsonError, msgspec.DecodeError) as error:
        raise StdioError("protocol_error", f"not JSON: {error}") from None
    return pairs


def _check_version(found: Mapping[str, bytes], event_id: str) -> None:
    version = _text(found, "aep_version")
    if version != VERSION:
        raise StdioError(
            "unsupported_version",
            f"aep_version {quoted(version)} is not supported",
            event_id=event_id,
            details={"versions": [VERSION]},
        )


def _event(found: Mapping[str, bytes], type_: str) -> StdioEvent:
    required = {name: _text(found, name) for name in _REQUIRED_TEXTS}
    optional = {name: _string(found, name) for name in _OPTIONAL_TEXTS if name in found}
    if not is_time(required["created_at"]):
        raise JsonError("created_at is not an RFC 3339 date and time with a timezone")
    if "payload" not in found:
        raise JsonError("payload is missing")
    expires_at: str | None = None
    if found.get("expires_at", b"null") != b"null":
        expires_at = _string(found, "expires_at")
        if not is_time(expires_at):
            raise JsonError("expires_at is not an RFC 3339 date and time with a timezone")
    delivery = found.get("delivery")
    if delivery is not None and not delivery.startswith(b"{"):
        raise JsonError("delivery is not an object")
    return StdioEvent(
        type=type_,
        payload=msgspec.Raw(found["payload"]),
        expires_at=expires_at,
        delivery=None if delivery is None else msgspec.Raw(delivery),
        **required,
        **optional,
    )


def _text(found: Mapping[str, bytes], name: str) -> str:
    if name not in found:
        raise JsonError(f"{name} is missing")
    text = _string(found, name)
    if not text:
        raise JsonError(f"{name} is empty")
    return text


def _string(found: Mapping[str, bytes], name: str) -> str:
    if not found[name].startswith(b'"'):
        raise JsonError(f"{name} is not a string")
    return str(_read_value(found[name]))


def session_of(event: StdioEvent) -> str | None:
    """Return the session that ``event`` is about: its own member, or for a session's Events the payload's."""
    if event.session_id or not event.type.startswith("session."):
        return event.session_id or None
    try:
        named = msgspec.json.decode(event.payload, type=_SessionPayload).session_id
    except (ValueError, RecursionError):
        return None
    return named or None


class _SessionPayload(msgspec.Struct, gc=False):
    session_id: str
