"""The envelope's JSON: one object to its core attributes and extension attributes, every member accounted
for.

``read`` takes one of two ways, the second the exact judge of what the first could not settle:

1. one msgspec pass into ``Envelope``. Encoding the result again gives text of the received length if, and
   only if, the received text holds nothing else: no doubled or ``null`` member, no extension attribute, no
   whitespace, no escape that was not needed (msgspec spells a string as short as JSON allows). Whitespace
   and extension attributes are settled by the same count, taken of the bytes that are not whitespace and
   with the extension attributes added. Such an envelope is done, its ``data`` checked, not built;
2. otherwise the members are read one by one, doubled ones kept apart and ``data`` still unbuilt, and judged
   in words fit for a detail.

``read_together`` takes the first way with many texts at once, which saves most of what the calls cost.

Invariants: the verdict and the values depend on the bytes alone, not on the way they took; the
payload is never interpreted. AEP-0001 §5.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Final, Literal, cast

import msgspec

from aep_relay.protocol.errors import EventTooLarge, InvalidEvent, quoted
from aep_relay.protocol.grammar import EXTENSION_NAME
from aep_relay.protocol.jsontext import (
    MAX_NESTING_LEVELS,
    SURELY_FLAT_BYTES,
    WHITESPACE,
    JsonError,
    TooManyParts,
    check_structure,
    integer,
    members,
)
from aep_relay.protocol.position import MAX_POSITION
from aep_relay.protocol.registry import CAPTURE_RANK, CORE_ATTRIBUTES, SEVERITY_RANK

Extension = str | int | bool
"""The value of an extension attribute (AEP-0001 §5.4)."""

Extensions = dict[str, Extension]

VERSION: Final = "0.1"
"""The only value of ``aep``."""

MAX_EXTENSION_BYTES: Final = 64 << 10
"""What an envelope may hold besides its core attributes, whitespace not counted. Each extension attribute is looked
at by itself and kept as a value: without a bound, a few megabytes of them take seconds, and hundreds of megabytes."""

_CERTAINLY_FEW_BYTES: Final = MAX_EXTENSION_BYTES // 2
_MEMBER_BYTES = len('"":,')
_OPENING_BRACE, _CLOSING_BRACE = ord("{"), ord("}")
_BOOLEANS = (b"true", b"false")
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")

_Text = Annotated[str, msgspec.Meta(min_length=1)]
_Severity = Literal["debug", "info", "notice", "warning", "error", "critical"]
_Capture = Literal["none", "metadata", "redacted", "full"]
_Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_POSITION)]


class NotJson(InvalidEvent):
    """The text is no JSON at all, or ``may_be_surrogate``: JSON's grammar allows a lone one, this protocol does not."""

    may_be_surrogate = False


class Envelope(msgspec.Struct, gc=False, omit_defaults=True):
    """The core attributes, ``None`` where absent; ``data`` as spelled. A ``null`` is caught by the length."""

    aep: Literal["0.1"]
    id: _Text
    type: _Text
    time: _Text
    source: _Text
    agent: _Text
    session: _Text | None = None
    seq: _Count | None = None
    epoch: _Count | None = None
    subject: _Text | None = None
    run: _Text | None = None
    step: _Text | None = None
    cause: _Text | None = None
    traceparent: _Text | None = None
    severity: _Severity | None = None
    capture: _Capture | None = None
    data: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_Core = msgspec.defstruct(
    "_Core", [(name, msgspec.Raw | msgspec.UnsetType, msgspec.UNSET) for name in CORE_ATTRIBUTES], gc=False
)
"""The core attributes as they are spelled; of a doubled one the last."""

_read_core = msgspec.json.Decoder(_Core).decode
_read_envelope = msgspec.json.Decoder(Envelope).decode
_read_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_read_string = msgspec.json.Decoder(str).decode
_read_envelopes = msgspec.json.Decoder(Envelope).decode_lines
_write = msgspec.json.Encoder().encode
_write_each = msgspec.json.Encoder().encode_lines


def read(raw: bytes) -> tuple[Envelope, Extensions | None]:
    """Return the core attributes and the extension attributes, ``None`` if there are none, of the Event
    ``raw``.

    Members are checked for presence, JSON type and their closed vocabularies; the strings' grammars are not.
    Raises :class:`InvalidEvent`.
    """
    try:
        return _read_quickly(raw)
    except (msgspec.ValidationError, RecursionError):
        return _read_exactly(raw)
    except msgspec.DecodeError as error:
        # It breaks off at the same byte whoever reads it.
        raise _not_json(raw, error) from None
    except ValueError:
        return _read_exactly(raw)


def _read_quickly(raw: bytes) -> tuple[Envelope, Extensions | None]:
    """The first way. Raises ValueError or RecursionError where it cannot settle the matter, or the text is no
    JSON."""
    if not raw.isascii():
        raw.decode()
    try:
        check_structure(raw)
    except TooManyParts as error:
        # Whatever else is wrong, it would take too long to say.
        raise EventTooLarge(str(error)) from None
    envelope = _read_envelope(raw)
    written = _write(envelope)
    extensions: Extensions | None = None
    if len(written) != len(raw) and (rest_bytes := _inked(raw) - _inked(written)):
        if rest_bytes > _CERTAINLY_FEW_BYTES:
            raise JsonError("more than can be looked at in passing")
        extensions = _extensions(raw, rest_bytes)
    # ``data`` is written last: what ends in a brace before the envelope's own is an object.
    if written[-2] != _CLOSING_BRACE and envelope.data is not msgspec.UNSET:
        raise JsonError("data is not an object")
    return envelope, extensions


def read_together(
    texts: Sequence[bytes], joined: bytes
) -> tuple[list[Envelope], dict[int, Extensions]] | None:
    """Return what ``read`` returns of each of ``texts``, the extension attributes by index where there are any.

    ``joined`` is the texts with a line feed between them. None if one of them is not for the first way, has whitespace
    around it or a line feed within: then each has to be read by itself.
    """
    try:
        return _read_all_quickly(texts, joined)
    except (msgspec.MsgspecError, ValueError, RecursionError, InvalidEvent):
        return None


def _read_all_quickly(
    texts: Sequence[bytes], joined: bytes
) -> tuple[list[Envelope], dict[int, Extensions]] | None:
    if not joined.isascii():
        joined.decode()
    if max(map(len, texts)) > SURELY_FLAT_BYTES:
        for text in texts:
            check_structure(text)
    envelopes = _read_envelopes(joined)
    if len(envelopes) != len(texts) or joined.count(b"\n") != len(texts) - 1:
        return None
    extensions: dict[int, Extensions] = {}
    written = _write_each(envelopes)
    # No text is written longer than it is spelled: where the sums are the same, so is each.
    if len(written) != len(joined) + 1 and _inked(written) != _inked(joined):
        for index, (text, spelled) in enumerate(zip(texts, written.split(b"\n"), strict=False)):
            if len(spelled) != len(text) and _inked(spelled) != _inked(text):
                envelopes[index], found = _read_quickly(text)
                extensions[index] = found or {}
    for text, envelope in zip(texts, envelopes, strict=True):
        # A line feed between two braces parts two texts, wherever it stands: none is within one.
        if text[0] != _OPENING_BRACE or text[-1] != _CLOSING_BRACE:
            return None
        # What ends in two braces ends with ``data``: no other attribute is an object.
        if text[-2] != _CLOSING_BRACE and not _is_object_or_absent(envelope.data):
            return None
    return envelopes, extensions


def _is_object_or_absent(data: msgspec.Raw | msgspec.UnsetType) -> bool:
    return data is msgspec.UNSET or bytes(data)[0] == _OPENING_BRACE


def _inked(text: bytes) -> int:
    """Return how many bytes of ``text`` are not whitespace."""
    return len(text.translate(None, WHITESPACE))


def _extensions(raw: bytes, rest_bytes: int) -> Extensions:
    """Return the extension attributes of ``raw``, which must account for all of ``rest_bytes``."""
    extensions: Extensions = {}
    for name, value in _read_members(raw).items():
        if name not in CORE_ATTRIBUTES:
            spelled = bytes(value)
            extensions[name] = _extension(name, spelled)
            rest_bytes -= len(name) + _inked(spelled) + _MEMBER_BYTES
    if rest_bytes:
        raise JsonError("more than extension attributes")
    return extensions


def _read_exactly(raw: bytes) -> tuple[Envelope, Extensions | None]:
    """The second way. Raises :class:`InvalidEvent` saying what is wrong."""
    pairs = _members_of(raw)
    found = dict(pairs)
    try:
        if len(found) != len(pairs):
            counts = Counter(name for name, _ in pairs)
            raise JsonError(f"{quoted(counts.most_common(1)[0][0])} occurs more than once")
        return _assemble(found)
    except JsonError as error:
        raise InvalidEvent(str(error), event_id=_own_id(pairs)) from None


def _members_of(raw: bytes) -> list[tuple[str, bytes]]:
    """Return the members of ``raw`` as they are spelled. Raises :class:`InvalidEvent` if it is no JSON
    object."""
    try:
        raw.decode()
        _check_extent(raw)
        pairs = members(raw)
    except UnicodeDecodeError as error:
        raise InvalidEvent(f"not UTF-8 at byte {error.start}") from None
    except RecursionError:
        raise InvalidEvent(f"nested deeper than {MAX_NESTING_LEVELS} levels") from None
    except msgspec.ValidationError:
        raise InvalidEvent("not a JSON object") from None
    except msgspec.DecodeError as error:
        raise _not_json(raw, error) from None
    try:
        check_structure(raw)
    except JsonError as error:
        raise InvalidEvent(str(error), event_id=_own_id(pairs)) from None
    return pairs


def _not_json(raw: bytes, error: msgspec.DecodeError) -> NotJson:
    may_be_surrogate = _SURROGATE.search(raw) is not None
    problem = NotJson(f"not JSON: {error}{' (or a lone surrogate)' if may_be_surrogate else ''}")
    problem.may_be_surrogate = may_be_surrogate
    return problem


def _check_extent(raw: bytes) -> None:
    """Raise :class:`EventTooLarge` beyond ``MAX_EXTENSION_BYTES``, or what ``members`` raises for what is no
    object."""
    core = msgspec.structs.astuple(_read_core(raw))
    core_bytes = sum(_inked(bytes(value)) for value in core if value is not msgspec.UNSET)
    if _inked(raw) - core_bytes > MAX_EXTENSION_BYTES:
        raise EventTooLarge(f"extension attributes take at most {MAX_EXTENSION_BYTES} bytes")


def _assemble(found: dict[str, bytes]) -> tuple[Envelope, Extensions | None]:
    for name, value in found.items():
        if value == b"null":
            raise JsonError(f"{quoted(name)} is null")
    if _required(found, "aep") != VERSION:
        raise JsonError(f'aep is not "{VERSION}"')
    if not found.get("data", b"{").startswith(b"{"):
        raise JsonError("data is not an object")
    envelope = Envelope(
        aep=VERSION,
        id=_required(found, "id"),
        type=_required(found, "type"),
        time=_required(found, "time"),
        source=_required(found, "source"),
        agent=_required(found, "agent"),
        session=_optional(found, "session"),
        seq=_count(found, "seq"),
        epoch=_count(found, "epoch"),
        subject=_optional(found, "subject"),
        run=_optional(found, "run"),
        step=_optional(found, "step"),
        cause=_optional(found, "cause"),
        traceparent=_optional(found, "traceparent"),
        severity=cast("_Severity | None", _word(found, "severity", SEVERITY_RANK)),
        capture=cast("_Capture | None", _word(found, "capture", CAPTURE_RANK)),
        data=msgspec.Raw(found["data"]) if "data" in found else msgspec.UNSET,
    )
    extensions = {
        name: _extension(name, value) for name, value in found.items() if name not in CORE_ATTRIBUTES
    }
    return envelope, extensions or None


def _string(name: str, value: bytes) -> str:
    if not value.startswith(b'"'):
        raise JsonError(f"{name} is not a string")
    return _read_string(value)


def _required(found: dict[str, bytes], name: str) -> str:
    text = _optional(found, name)
    if text is None:
        raise JsonError(f"{name} is missing")
    return text


def _optional(found: dict[str, bytes], name: str) -> str | None:
    if name not in found:
        return None
    text = _string(name, found[name])
    if not text:
        raise JsonError(f"{name} is empty")
    return text


def _word(found: dict[str, bytes], name: str, vocabulary: Mapping[str, int]) -> str | None:
    text = _optional(found, name)
    if text is not None and text not in vocabulary:
        raise JsonError(f"{name} is none of {', '.join(vocabulary)}")
    return text


def _count(found: dict[str, bytes], name: str) -> int | None:
    if name not in found:
        return None
    value = _integer(name, found[name])
    if not 0 <= value <= MAX_POSITION:
        raise JsonError(f"{name} is not from 0 to {MAX_POSITION}")
    return value


def _integer(name: str, value: bytes) -> int:
    number = integer(value.decode()) if value[0] in b"-0123456789" else None
    if number is None:
        raise JsonError(f"{name} is not an integer")
    return number


def _extension(name: str, value: bytes) -> Extension:
    if EXTENSION_NAME.fullmatch(name) is None:
        raise JsonError(f"{quoted(name)} is neither a core attribute nor the name of an extension attribute")
    if value in _BOOLEANS:
        return value == b"true"
    if value[0] in b"[{":
        raise JsonError(f"extension attribute {name} is not a string, integer or boolean")
    return _string(name, value) if value.startswith(b'"') else _integer(name, value)


def _own_id(pairs: list[tuple[str, bytes]]) -> str | None:
    """Return the Event's ``id`` for the error that refuses it, if it has exactly one that is valid."""
    ids = [value for name, value in pairs if name == "id"]
    return (_read_string(ids[0]) or None) if len(ids) == 1 and ids[0].startswith(b'"') else None
