"""What an adapter owes: content is classified, digested and redacted where it enters (AEP-0003 §9).

An adapter knows its source's full content. :class:`Adapter` makes Events of it that hold no more than the configured
ceiling admits and say so in ``capture``; digests are taken of the original, before anything is dropped or redacted.
Identifiers stay as they are in the Event; :func:`safe_name` is how they become part of a path or a URL. Invariants:
nothing is ever leveled up, and two identifiers never share a safe name.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

import msgspec

from aep_relay.protocol.capture import Redact, downlevel
from aep_relay.protocol.errors import InvalidEvent
from aep_relay.protocol.event import decode
from aep_relay.protocol.registry import CAPTURE_RANK, CATEGORIES, TYPES, Capture

MAX_NAME_CHARS: Final = 160
"""The longest safe name; a suffix still fits into the 255 bytes of a file name."""

VENDOR_CATEGORY: Final = "x"
"""The category of all vendor types, for ceilings."""

_DIGEST_BYTES = 16
_DIGEST_SUFFIX = "_digest"
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]|\A[.-]")
# Percent-encoding, but not as it is used below: of a letter, and in lower case. So no identifier has these names.
_EMPTY_NAME = "%65mpty"
_LONG_MARK = "%7e"
_CUT_ESCAPE = re.compile(r"%[0-9A-F]?\Z")
_EXACT_INTEGER = 2**53
_SHORTEST_EXPONENT, _LONGEST_POINT = 21, -6

_read_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_read_value = msgspec.json.Decoder().decode
_write = msgspec.json.Encoder().encode

_DIGESTED: Final[Mapping[str, tuple[str, ...]]] = {
    type_: names
    for type_, fields in TYPES.items()
    if (names := tuple(path.removesuffix(_DIGEST_SUFFIX) for path in fields if path.endswith(_DIGEST_SUFFIX)))
}
"""By type, the content that the registry has a digest field for."""


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The configured capture ceiling: a capture rank, and others for single categories (AEP-0003 §9.1)."""

    default: int = int(Capture.METADATA)
    categories: Mapping[str, int] = field(
        default_factory=lambda: MappingProxyType({"attention": int(Capture.REDACTED)})
    )

    @classmethod
    def parse(cls, default: str, categories: Mapping[str, str]) -> Ceiling:
        """Return the ceiling of level names; ``x`` is the category of vendor types. Raises ``ValueError``."""
        for category in categories:
            if category not in CATEGORIES and category != VENDOR_CATEGORY:
                raise ValueError(f"{category!r} is no category of Event types")
        ranks = {category: _rank(level) for category, level in categories.items()}
        return cls(_rank(default), MappingProxyType(ranks))

    def of(self, type_: str) -> int:
        """Return the capture rank that Events of ``type_`` may have at most."""
        return self.categories.get(type_.partition(".")[0], self.default)


def _rank(level: str) -> int:
    if level not in CAPTURE_RANK:
        raise ValueError(f"{level!r} is no capture level: {', '.join(CAPTURE_RANK)}")
    return CAPTURE_RANK[level]


class Adapter:
    """Makes Events of a source's attributes and content, held to a ceiling.

    ``redact`` is the redaction pipeline; without it a ``redacted`` ceiling yields ``metadata`` (AEP-0003 §9.4).
    """

    def __init__(self, ceiling: Ceiling | None = None, redact: Redact | None = None) -> None:
        self.ceiling = Ceiling() if ceiling is None else ceiling
        self.redact = redact

    def emit(self, attributes: Mapping[str, object]) -> bytes:
        """Return the text of an Event, one line, with ``capture`` set to the level that was honored.

        ``attributes`` are the envelope's members but ``aep``; ``data`` is a JSON object, or its text as
        ``msgspec.Raw``, and is taken for ``full`` content unless ``capture`` says that it is less. Raises
        :class:`InvalidEvent` if they are no valid envelope.
        """
        members: dict[str, object] = {"aep": "0.1", **attributes}
        members.setdefault("capture", "full")
        try:
            if "data" in members:
                members["data"] = _completed(members)
            raw = msgspec.json.format(_write(members), indent=-1)
        except (ValueError, TypeError, RecursionError) as error:
            raise InvalidEvent(f"not JSON: {error}") from None
        event = decode(raw)
        return downlevel(event, min(self.ceiling.of(event.type), event.capture), self.redact)


def _completed(members: Mapping[str, object]) -> object:
    """Return the payload with what is derived of its original content: digests and a missing prompt."""
    type_, data = members.get("type"), members["data"]
    digested = _DIGESTED.get(type_, ()) if isinstance(type_, str) else ()
    is_request = type_ == "attention.requested"
    if not digested and not is_request:
        return data
    spelled = bytes(data) if isinstance(data, msgspec.Raw) else _write(data)
    if not spelled.lstrip().startswith(b"{"):
        return data
    payload = _read_members(spelled)
    derived: dict[str, str] = {
        name + _DIGEST_SUFFIX: digest(_read_value(payload[name]))
        for name in digested
        if name in payload and name + _DIGEST_SUFFIX not in payload
    }
    if is_request and "prompt" not in payload:
        derived["prompt"] = _prompt(members, payload)
    return payload | derived


def _prompt(members: Mapping[str, object], payload: Mapping[str, msgspec.Raw]) -> str:
    """Say of structural metadata alone what is asked for (AEP-0003 §9.2)."""
    kind = _read_value(payload["kind"]) if "kind" in payload else None
    text = f"{members.get('agent')} requests {kind if isinstance(kind, str) and kind else 'attention'}"
    subject = members.get("subject")
    return text if subject is None else f"{text}: {subject}"


def digest(content: object) -> str:
    """Return the first 16 bytes of the SHA-256 of the canonical JSON of ``content``, in hex (AEP-0003 §9.3).

    Raises what :func:`canonical_json` raises.
    """
    return hashlib.sha256(canonical_json(content)).digest()[:_DIGEST_BYTES].hex()


def canonical_json(value: object) -> bytes:
    """Return the canonical text of a JSON value: RFC 8785, by which every implementation takes the same digest.

    An integer that no IEEE double holds is written in full. Raises ``ValueError`` for what is not JSON or is
    nested too deep.
    """
    try:
        return _canonical(value).encode("utf-8", "surrogatepass")
    except RecursionError:
        raise ValueError("nested too deep") from None


def _canonical(value: object) -> str:
    if value is None or isinstance(value, (bool, str)):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, (int, float)):
        return _number(value)
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(_canonical, value))}]"
    if isinstance(value, dict) and all(isinstance(name, str) for name in value):
        names = sorted(value, key=lambda name: name.encode("utf-16-be", "surrogatepass"))
        members = (f"{json.dumps(name, ensure_ascii=False)}:{_canonical(value[name])}" for name in names)
        return f"{{{','.join(members)}}}"
    raise ValueError(f"{type(value).__name__} is not JSON")


def _number(value: int | float) -> str:
    """Return the number as ECMAScript writes it, which RFC 8785 prescribes."""
    if isinstance(value, int):
        if abs(value) <= _EXACT_INTEGER:
            return str(value)
        try:
            value = float(value)
        except OverflowError:
            return str(value)
    if value - value != 0:
        raise ValueError("NaN and Infinity are not JSON")
    if value == 0:
        return "0"
    mantissa, _, exponent = repr(abs(value)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    point = len(whole) + int(exponent or 0) - (len(whole + fraction) - len(digits))
    digits = digits.rstrip("0")
    sign = "-" if value < 0 else ""
    return sign + _positioned(digits, point)


def _positioned(digits: str, point: int) -> str:
    """Return ``0.{digits}`` times ten to the ``point`` as ECMAScript spells it."""
    if not _LONGEST_POINT < point <= _SHORTEST_EXPONENT:
        mantissa = digits if len(digits) == 1 else f"{digits[0]}.{digits[1:]}"
        return f"{mantissa}e{point - 1:+d}"
    if point <= 0:
        return f"0.{'0' * -point}{digits}"
    if len(digits) <= point:
        return digits + "0" * (point - len(digits))
    return f"{digits[:point]}.{digits[point:]}"


def safe_name(identifier: str) -> str:
    """Return ``identifier`` as one component of a path or a URL (AEP-0003 §9.6).

    Letters, digits, ``.``, ``_`` and ``-`` stay, everything else is percent-encoded, a leading ``.`` or ``-`` too; a
    name beyond ``MAX_NAME_CHARS`` ends in a hash of the identifier. Never empty, ``.`` or ``..``, and different for
    different identifiers; on a file system that ignores case that holds for identifiers that differ in more than it.
    """
    if not identifier:
        return _EMPTY_NAME
    name = _UNSAFE.sub(_encoded, identifier)
    if len(name) <= MAX_NAME_CHARS:
        return name
    full = hashlib.sha256(identifier.encode("utf-8", "surrogatepass")).hexdigest()
    start = name[: MAX_NAME_CHARS - len(_LONG_MARK) - len(full)]
    return _CUT_ESCAPE.sub("", start) + _LONG_MARK + full


def _encoded(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match[0].encode("utf-8", "surrogatepass"))
