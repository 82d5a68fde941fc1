"""The frames of the WebSocket binding: telling them from Events, reading what is asked, writing what is
answered.

Invariants: a text is an Event if its ``type`` holds a dot or is no string at all, and a frame otherwise; the
verdict on an Event is that of ``event.decode``. Of a frame only the members of its type that ``members`` names are
read, and they strictly; what else is in it is ignored whatever it holds, and so are frames of other types, as long as
they are JSON and have one ``type`` (§4 rule 2); of what is too intricate to be looked through, the type is told by its
beginning. Written frames are one line of JSON. AEP-0003 §2, §3.5, §4.1, §6.5.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from aep_relay.protocol import filters, members, position
from aep_relay.protocol.envelope import NotJson
from aep_relay.protocol.errors import (
    BadJson,
    EventTooLarge,
    InvalidEvent,
    InvalidFilter,
    InvalidFrame,
    ProtocolError,
)
from aep_relay.protocol.event import Event, decode
from aep_relay.protocol.jsontext import WHITESPACE, JsonError
from aep_relay.protocol.registry import CAPTURE_RANK
from aep_relay.protocol.skim import TooIntricate, skim

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aep_relay.protocol.filters import Filter
    from aep_relay.protocol.position import Position, ResumePoint

    Frame = dict[str, object]

MAX_ID_CHARS: Final = 256
"""The longest ``id`` of a request."""

_SHORT = Struct("!BBH")
_LONG = Struct("!BBQ")
_FIN_TEXT: Final = 0x81
_TINY = [bytes((_FIN_TEXT, size)) for size in range(126)]
_ID_DETAIL: Final = f"{{}}: id is not a string of 1 to {MAX_ID_CHARS} characters"
_GLIMPSE_BYTES: Final = 64 << 10
_BEGUN_AS_USUAL: Final = b'{"aep"'
"""How an Event most often begins, which is seen sooner than found."""
_LEADING_MEMBER = re.compile(
    rb'[ \t\r\n]*+[{,][ \t\r\n]*+"([^"\\]*+)"[ \t\r\n]*+:[ \t\r\n]*+("(?:[^"\\]++|\\.)*+"|[-+.0-9A-Za-z]++)'
)
_ESCAPED_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class FrameTooLarge(ProtocolError):
    """A frame, no Event, longer than ``max_frame_bytes``. ``request_id`` is its ``id`` if it has a usable
    one.
    """

    code = "limit-exceeded"

    def __init__(self, max_frame_bytes: int, request_id: str | None) -> None:
        super().__init__(f"max_frame_bytes: a frame is at most {max_frame_bytes} bytes")
        self.request_id = request_id


class InvalidRequest(InvalidFilter):
    """A ``subscribe`` that is refused (AEP-0003 §6.5). ``request_id`` is its ``id`` if it has a usable one."""

    def __init__(self, code: str, detail: str, request_id: str | None) -> None:
        super().__init__(detail)
        self.code = code
        self.request_id = request_id


@dataclass(frozen=True, slots=True)
class SubscribeRequest:
    """What a ``subscribe`` frame asks for."""

    id: str
    filter: Filter
    ceiling: int | None
    """A capture rank; None for "as received"."""
    from_: list[ResumePoint] | Literal["all"] | None
    others: bool = False
    """Whether the sessions that ``from`` does not name are to be replayed whole: what chained relays ask for."""


class _Head(msgspec.Struct, gc=False):
    """What tells a frame from an Event, and whom to answer; of a doubled member the last."""

    type: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    id: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _Heartbeat(msgspec.Struct, gc=False):
    """The commonest frames."""

    type: Literal["ping", "pong"]
    t: int


_MAX_SMALL_TALK_BYTES: Final = 64

_USUAL_PONG: Final = re.compile(
    rb'\{(?:"type": ?"pong", ?"t": ?(?:0|[1-9][0-9]{0,17})|"t": ?(?:0|[1-9][0-9]{0,17}), ?"type": ?"pong")\}'
)
"""With ``t`` as it was sent; members sorted, or not."""

_read_heartbeat = msgspec.json.Decoder(_Heartbeat).decode
_read_head = msgspec.json.Decoder(_Head).decode
_read_string = msgspec.json.Decoder(str).decode
_write = msgspec.json.Encoder().encode


def parse(text: bytes, max_event_bytes: int, max_frame_bytes: int | None = None) -> Event | Frame:
    """Return the Event or the frame that ``text`` holds.

    Without ``max_frame_bytes``, frames are as long as Events at most. Raises ``InvalidEvent`` and
    ``EventTooLarge`` for Events, ``InvalidFrame`` and ``FrameTooLarge`` for frames, ``InvalidRequest`` for
    a ``subscribe`` that is malformed, ``BadJson`` for what is not a JSON object.
    """
    frame = _small_talk(text)
    if frame is not None:
        return frame
    limit_bytes = max_event_bytes if max_frame_bytes is None else max_frame_bytes
    most_bytes = max(max_event_bytes, limit_bytes, _GLIMPSE_BYTES)
    if len(text) > most_bytes and len(text.strip(WHITESPACE)) > most_bytes:
        raise _too_large(text, max_event_bytes, limit_bytes)
    type_, id_ = _named(text)
    if type_ is None:
        try:
            return decode(text, max_event_bytes)
        except InvalidEvent as error:
            unread = isinstance(error, EventTooLarge) and len(text) > max(limit_bytes, _GLIMPSE_BYTES)
            type_, id_ = _glimpse(text) if unread else _head(text, error)
            if type_ is None or "." in type_:
                if id_ is not None and isinstance(error, EventTooLarge):
                    # Whose length was seen before its id was.
                    raise EventTooLarge(error.detail, event_id=id_) from None
                raise
    if len(text) > limit_bytes:
        raise FrameTooLarge(limit_bytes, _usable(id_))
    try:
        # An object: its head was read.
        return members.read(text, type_)
    except JsonError as error:
        if type_ == "subscribe":
            # What refuses it is of a closed set, and names it (AEP-0003 §6.5).
            raise InvalidRequest("invalid-filter", str(error), _usable(id_)) from None
        raise InvalidFrame(str(error)) from None


def _named(text: bytes) -> tuple[str | None, str | None]:
    """Return ``type`` and ``id`` of what is a frame at first sight; no type for what may be an Event."""
    if text.startswith(_BEGUN_AS_USUAL) or b'"aep"' in text or b"\\u" in text:
        return None, None
    try:
        text.decode()
        head = _read_head(text)
        type_ = _string(head.type)
    except (ValueError, RecursionError):
        return None, None
    return (None, None) if type_ is None or "." in type_ else (type_, _string(head.id))


def _small_talk(text: bytes) -> Frame | None:
    """Return the ``ping`` or ``pong`` that ``text`` is, of ten thousand idle peers, at little cost; else None."""
    if len(text) > _MAX_SMALL_TALK_BYTES:
        return None
    try:
        heartbeat = _read_heartbeat(text)
    except ValueError:
        return None
    spelled = (heartbeat.type.encode(), heartbeat.t)
    if text not in (b'{"type":"%b","t":%d}' % spelled, b'{"type": "%b", "t": %d}' % spelled):
        # Something else is there too, or spelled in another way: for the others to judge.
        return None
    return {"type": heartbeat.type, "t": heartbeat.t}


def is_pong(text: bytes) -> bool:
    """Whether ``text`` is a ``pong`` in one of the usual spellings; ``parse`` has to tell of any other."""
    return _USUAL_PONG.fullmatch(text) is not None


def _head(text: bytes, error: InvalidEvent) -> tuple[str | None, str | None]:
    """Return ``type`` and ``id`` of a text that is no valid Event, each None if it is no string.

    Raises ``BadJson`` if it is no JSON object, and ``error`` if it can't be told.
    """
    if isinstance(error, NotJson) and not error.may_be_surrogate:
        raise BadJson(error.detail)
    try:
        text.decode()
        head = _read_head(text)
        return _string(head.type), _string(head.id)
    except UnicodeDecodeError as problem:
        raise BadJson(f"not UTF-8 at byte {problem.start}") from None
    except msgspec.ValidationError:
        raise BadJson("not a JSON object") from None
    except (msgspec.DecodeError, RecursionError) as problem:
        # Perhaps JSON all the same: its grammar allows lone surrogates and any depth, msgspec does not.
        if not isinstance(problem, RecursionError) and not _ESCAPED_SURROGATE.search(text):
            raise BadJson(f"not JSON: {problem}") from None
        try:
            found = dict(skim(text))
        except TooIntricate:
            type_, id_ = _glimpse(text)
            if type_ is None:
                raise error from None
            return type_, id_
        except JsonError:
            raise BadJson(f"not JSON: {problem}") from None
        return _spelled(found.get("type")), _spelled(found.get("id"))


def _too_large(text: bytes, max_event_bytes: int, max_frame_bytes: int) -> EventTooLarge | FrameTooLarge:
    """Return the refusal of a text that is longer than any may be, and so is not read."""
    type_, id_ = _glimpse(text)
    if type_ is not None and "." not in type_:
        return FrameTooLarge(max_frame_bytes, _usable(id_))
    detail = f"an Event is at most {max_event_bytes} bytes, this one has {len(text)}"
    return EventTooLarge(detail, event_id=id_)


def _glimpse(text: bytes) -> tuple[str | None, str | None]:
    """Return ``type`` and ``id`` as far as they stand at the very beginning of a text that is not worth reading."""
    found: dict[bytes, str] = {}
    head = text[:_GLIMPSE_BYTES]
    at = 0
    while match := _LEADING_MEMBER.match(head, at):
        at = match.end()
        if match[1] in (b"type", b"id") and match[2].startswith(b'"'):
            try:
                found[match[1]] = _read_string(match[2])
            except ValueError:
                break
    return found.get(b"type"), found.get(b"id")


def _spelled(text: bytes | None) -> str | None:
    if text is None or not text.startswith(b'"'):
        return None
    # Without lone surrogates: what holds one is nothing that is known here.
    return str(json.loads(text.decode())).encode("utf-8", "replace").decode()


def _string(spelled: msgspec.Raw | msgspec.UnsetType) -> str | None:
    if isinstance(spelled, msgspec.UnsetType):
        return None
    text = bytes(spelled)
    return _read_string(text) if text.startswith(b'"') else None


def _usable(id_: object) -> str | None:
    return id_ if isinstance(id_, str) and 0 < len(id_) <= MAX_ID_CHARS else None


def parse_request_id(frame: Frame) -> str:
    """Return the ``id`` of a request (AEP-0003 §4.1, §6.5). Raises ``InvalidFrame``."""
    id_ = _usable(frame.get("id"))
    if id_ is None:
        raise InvalidFrame(_ID_DETAIL.format(frame.get("type")))
    return id_


def parse_subscribe(frame: Frame) -> SubscribeRequest:
    """Return what a ``subscribe`` frame asks for; without ``filter`` that is every Event.

    Raises ``InvalidRequest``, an ``InvalidFilter`` that knows its ``request_id``, for anything malformed:
    fail closed (AEP-0003 §6.5).
    """
    id_ = _usable(frame.get("id"))
    if id_ is None:
        raise InvalidRequest("invalid-filter", _ID_DETAIL.format("subscribe"), None)
    try:
        filter_ = filters.parse(frame["filter"]) if "filter" in frame else filters.EMPTY
        from_ = position.parse_from(frame["from"]) if "from" in frame else None
        ceiling = _ceiling(frame["capture"]) if "capture" in frame else None
    except InvalidFilter as error:
        raise InvalidRequest(error.code, error.detail, id_) from None
    return SubscribeRequest(id_, filter_, ceiling, from_, _asks_for_others(frame))


def _asks_for_others(frame: Frame) -> bool:
    experimental = frame.get("experimental")
    return isinstance(experimental, dict) and experimental.get("others") == "all"


def _ceiling(value: object) -> int:
    if not isinstance(value, str) or value not in CAPTURE_RANK:
        raise InvalidFilter(f"capture: none of {', '.join(CAPTURE_RANK)}")
    return CAPTURE_RANK[value]


def text_frame(payload: bytes) -> bytes:
    """Return ``payload`` as one unfragmented, unmasked WebSocket text frame (RFC 6455 §5.2)."""
    size = len(payload)
    if size < 126:
        return _TINY[size] + payload
    if size < 65_536:
        return _SHORT.pack(_FIN_TEXT, 126, size) + payload
    return _LONG.pack(_FIN_TEXT, 127, size) + payload


def subscribed(id_: str) -> bytes:
    """Return the acknowledgement of a subscription."""
    return _write({"type": "subscribed", "id": id_})


def unsubscribed(id_: str) -> bytes:
    """Return the acknowledgement of an ``unsubscribe``."""
    return _write({"type": "unsubscribed", "id": id_})


def replay_exhausted(subscription_id: str, session: str, earliest: Position) -> bytes:
    """Return the frame that says what is held of ``session`` begins at ``earliest`` (AEP-0003 §5)."""
    epoch, seq = earliest
    return _write(
        {
            "type": "replay-exhausted",
            "sub": subscription_id,
            "session": session,
            "earliest": {"epoch": epoch, "seq": seq},
        }
    )


def closing(reason: str, delivered: Sequence[Mapping[str, object]]) -> bytes:
    """Return the farewell; ``delivered`` holds ``{sub, session, epoch, seq}`` each (AEP-0003 §3.5.4)."""
    return _write({"type": "closing", "reason": reason, "delivered": delivered})


def ping(t: int) -> bytes:
    """Return a heartbeat; ``t`` is milliseconds since 1970, and comes back in the ``pong``."""
    return _write({"type": "ping", "t": t})


def pong(t: object) -> bytes:
    """Return the answer to a ``ping`` with ``t``, any JSON value (AEP-0003 §3.5.5)."""
    return _write({"type": "pong", "t": t})


def roster(id_: str, entries: msgspec.Raw) -> bytes:
    """Return the snapshot of live claims, a JSON array, that answers the request ``id_`` (AEP-0003 §4.1)."""
    return _write({"type": "roster", "id": id_, "entries": entries})
