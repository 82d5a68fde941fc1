"""RFC 8259 text, read exactly: integers in any spelling, duplicate member names, nesting, whitespace.

msgspec judges the grammar; this module adds what it does not say. Invariants: an integer keeps its exact
value whatever its spelling (``1``, ``1.0``, ``1e2``); the verdict on a text depends on its bytes alone,
never on the depth of the caller's stack; nothing here raises anything but :class:`JsonError`. AEP-0001 §5
(integers, duplicates).
"""

from __future__ import annotations

import json
import re
from functools import cache
from itertools import accumulate
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

WHITESPACE: Final = b" \t\r\n"
"""The four bytes that JSON allows between tokens; ``bytes.strip()`` alone would take two more."""

MAX_NESTING_LEVELS: Final = 256
"""Objects and arrays within one another, the outermost included. Deeper text is refused: a fixed bound,
well within the interpreter's stack, so that the same bytes are refused wherever they come in."""

SURELY_FLAT_BYTES: Final = 2 * MAX_NESTING_LEVELS
"""No text up to this length nests deeper."""

MAX_CONTAINERS: Final = 1 << 17
"""Objects and arrays in one text. Their nesting is counted one by one, so their number bounds what that takes."""

MAX_MEMBERS: Final = 1 << 17
"""Members of all the objects in one text, which bounds what it takes to look at each."""

MAX_INTEGER_DIGITS: Final = 400
"""Enough for every integer that fits an IEEE double. Longer ones are refused: ``1e999999999`` is eleven
bytes. In a text that is read whole, no number has more digits in a row."""

MAX_VALUES: Final = 1 << 17
"""Values in one text that is read whole."""

MAX_FRACTIONS: Final = 10_000
"""Numbers with a fraction or an exponent in one text that is read whole: each is judged by itself."""

_EXACT_IN_FLOAT = 2**53
_MAX_EXPONENT_DIGITS = 9
_NUMBER = re.compile(r"(-?)([0-9]+)(?:\.([0-9]+))?(?:[eE]([+-]?)([0-9]+))?")
_OPENING = bytes(1 if byte in b"[{" else 255 if byte in b"]}" else 0 for byte in range(256))
_LEAST_MEMBER_BYTES: Final = len('"":1')
_NUMERALS: Final = b"0123456789.eE+-,:[]{}"
"""What numbers are made of, and what parts one from the next."""
_KINDS = bytes.maketrans(b"123456789eE", b"000000000..")
"""Makes all digits alike, and what begins a fraction or an exponent."""
_TOO_LONG: Final = b"0" * (MAX_INTEGER_DIGITS + 1)


class JsonError(ValueError):
    """The text is not JSON, or not as strict as this protocol asks. The message is fit for a ``detail``."""


class TooManyParts(JsonError):
    """The text holds more than ``MAX_CONTAINERS``, ``MAX_MEMBERS`` or ``MAX_VALUES``."""


def integer(token: str) -> int | None:
    """Return the exact value of a JSON number ``token``, or ``None`` if it has a fractional part.

    ``-0`` and ``-0.0`` are 0. Raises :class:`JsonError` beyond ``MAX_INTEGER_DIGITS``.
    """
    match = _NUMBER.fullmatch(token)
    if match is None:
        raise JsonError("not a number")
    sign, whole, fraction, exponent_sign, exponent = match.groups(default="")
    digits = (whole + fraction).lstrip("0")
    if not digits:
        return 0
    significant = digits.rstrip("0")
    scale = len(digits) - len(significant) - len(fraction)
    exponent = exponent.lstrip("0")
    if len(exponent) > _MAX_EXPONENT_DIGITS:  # no text is long enough to make up for such an exponent
        if exponent_sign == "-":
            return None
        raise JsonError("integer too large")
    scale += int(exponent_sign + (exponent or "0"))
    if scale < 0:
        return None
    if len(significant) + scale > MAX_INTEGER_DIGITS:
        raise JsonError("integer too large")
    return int(sign + significant + "0" * scale)


def exact_integer(value: object) -> int | None:
    """Return the integer that the decoded JSON number ``value`` is, or ``None`` if it is none.

    For values from a reader that makes floats of integers spelled ``1.0`` or ``1e2``. Where a float may
    have been rounded it is no integer, and a boolean never is.
    """
    if isinstance(value, int):
        return None if isinstance(value, bool) else value
    if isinstance(value, float) and value.is_integer() and abs(value) <= _EXACT_IN_FLOAT:
        return int(value)
    return None


def check_structure(raw: bytes) -> None:
    """Raise :class:`JsonError` if the JSON text ``raw`` nests deeper than ``MAX_NESTING_LEVELS``, and
    :class:`TooManyParts` if it holds more than ``MAX_CONTAINERS`` or ``MAX_MEMBERS``.

    Cheap for what is short or flat: brackets are looked at one by one only where there are many. Of a text that is
    not JSON it may say either.
    """
    size = len(raw)
    if size <= SURELY_FLAT_BYTES:
        return
    if size > _LEAST_MEMBER_BYTES * MAX_MEMBERS and raw.count(b":") > MAX_MEMBERS:
        _check_count(_marks(raw, b":"), MAX_MEMBERS, f"more than {MAX_MEMBERS} members")
    if raw.count(b"[") + raw.count(b"{") > MAX_NESTING_LEVELS:
        detail = f"more than {MAX_CONTAINERS} objects and arrays"
        brackets = _check_count(_marks(raw, b"[]{}"), 2 * MAX_CONTAINERS, detail)
        steps = brackets.translate(_OPENING)
        if max(accumulate(memoryview(steps).cast("b")), default=0) > MAX_NESTING_LEVELS:
            raise JsonError(f"nested deeper than {MAX_NESTING_LEVELS} levels")


def _check_count(marks: bytes, most: int, detail: str) -> bytes:
    """Return those of ``marks`` that are in no string. Raises :class:`TooManyParts` if they are more than ``most``."""
    # Between strings that hold marks are marks again: with very many quotes left, there is no need to count.
    outside = marks if marks.count(b'"') > 2 * most + 2 else _outside(marks)
    if len(outside) > most:
        raise TooManyParts(detail)
    return outside


def _marks(raw: bytes, kept: bytes) -> bytes:
    """Return the bytes of the JSON text ``raw`` that are among ``kept``, and quotes around those in strings."""
    bare = raw
    if b"\\" in raw:  # backslashes stand in strings only, in pairs counted from the left of each run
        bare = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    # Two quotes with nothing kept between them: without both, whatever follows is as much in a string as before.
    return bare.translate(None, _all_but(kept + b'"')).replace(b'""', b"")


def _outside_strings(raw: bytes, kept: bytes) -> bytes:
    """Return the bytes of the JSON text ``raw`` that are among ``kept`` and do not stand in a string."""
    return _outside(_marks(raw, kept))


def _outside(marks: bytes) -> bytes:
    return b"".join(marks.split(b'"')[::2]) if b'"' in marks else marks


@cache
def _all_but(kept: bytes) -> bytes:
    return bytes(byte for byte in range(256) if byte not in kept)


def members(raw: bytes, max_members: int | None = None) -> list[tuple[str, bytes]]:
    """Return the members of the JSON object ``raw`` in order, doubled ones too, their values as spelled.

    Raises :class:`TooManyParts` when there are more than ``max_members``, and what msgspec raises:
    ``msgspec.ValidationError`` if ``raw`` is another JSON value, ``msgspec.DecodeError`` if it is none,
    RecursionError if it is nested too deep. UTF-8 is the caller's matter.
    """
    read = _read_pairs if max_members is None else _reader_of_few(max_members)
    try:
        return [(name.text, bytes(value)) for name, value in read(raw).items()]
    except _TooManyMembers:
        raise TooManyParts(f"more than {max_members} members") from None


def loads(raw: bytes | str) -> object:
    """Return the JSON value of ``raw``: integers exact in any spelling, other numbers as floats.

    Raises :class:`JsonError` for anything that is not strict JSON in UTF-8, for member names that occur
    twice in one object, for lone surrogates, and for text beyond ``MAX_NESTING_LEVELS``, ``MAX_CONTAINERS``,
    ``MAX_MEMBERS``, ``MAX_VALUES``, ``MAX_INTEGER_DIGITS`` or ``MAX_FRACTIONS``.
    """
    try:
        text = raw if isinstance(raw, str) else raw.decode()
        encoded = text.encode()
        check_structure(encoded)
        if encoded.count(b",") >= MAX_VALUES:
            _check_count(_marks(encoded, b","), MAX_VALUES - 1, f"more than {MAX_VALUES} values")
        if _has_fractions(encoded):
            # The grammar is msgspec's to judge, whoever builds the values.
            msgspec.json.decode(encoded, type=msgspec.Raw)
            value = _FRACTIONS.decode(text)
        else:
            value = msgspec.json.decode(encoded)
        _check_unique(encoded, value)
        return value
    except JsonError:
        raise
    except UnicodeError:
        raise JsonError("not UTF-8") from None
    except RecursionError:
        raise JsonError(f"nested deeper than {MAX_NESTING_LEVELS} levels") from None
    except ValueError as error:
        raise JsonError(f"not JSON: {error}") from None


def _has_fractions(encoded: bytes) -> bool:
    """Say whether numbers with a fraction or an exponent are in the JSON text, perhaps integers nevertheless.

    Raises :class:`JsonError` if there are too many to judge each, and for numbers without end.
    """
    numerals = _outside_strings(encoded, _NUMERALS).translate(_KINDS)
    if _TOO_LONG in numerals:
        raise JsonError(f"a number has more than {MAX_INTEGER_DIGITS} digits")
    fractions = numerals.count(b"0.")
    if fractions > MAX_FRACTIONS:
        raise JsonError(f"more than {MAX_FRACTIONS} numbers with a fraction or an exponent")
    return fractions > 0


def _check_unique(encoded: bytes, value: object) -> None:
    """Raise :class:`JsonError` if a member name was lost when the JSON text ``encoded`` became ``value``.

    A colon outside strings belongs to a member, so the colons tell how many there were.
    """
    if encoded.count(b":") > 1:
        kept = msgspec.json.encode(value)
        if len(_outside_strings(encoded, b":")) != len(_outside_strings(kept, b":")):
            raise JsonError("a member name occurs twice")


def _number(token: str) -> object:
    value = integer(token)
    return float(token) if value is None else value


class _Name:
    """A member name that equals no other, so that a dict keeps doubled members."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


def _name(_: type, text: str) -> _Name:
    return _Name(text)


class _TooManyMembers(Exception):
    """No ValueError, which msgspec would take for its own."""


def _reader_of_few(max_members: int) -> Callable[[bytes], dict[_Name, msgspec.Raw]]:
    numbers = iter(range(max_members))

    def name(_: type, text: str) -> _Name:
        if next(numbers, None) is None:
            raise _TooManyMembers
        return _Name(text)

    return msgspec.json.Decoder(dict[_Name, msgspec.Raw], dec_hook=name).decode


_read_pairs = msgspec.json.Decoder(dict[_Name, msgspec.Raw], dec_hook=_name).decode
_FRACTIONS = json.JSONDecoder(parse_float=_number)
