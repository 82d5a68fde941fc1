"""What is read of a frame: the members that its type is known to have, strictly, and nothing else.

What nobody here knows is ignored whatever it holds, so that a later revision may add it: unknown types, unknown
members, and among the capabilities and in the identity of a hello what can't be read, which is left out. AEP-0003 §2,
§4 rule 2.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Final, cast

import msgspec

from aep_relay.protocol.jsontext import JsonError, TooManyParts, loads, members
from aep_relay.protocol.skim import MAX_SKIMMED_MEMBERS, TooIntricate, skim

if TYPE_CHECKING:
    from collections.abc import Iterator

    Frame = dict[str, object]

MEMBERS: Final = {
    "hello": ("versions", "role", "identity", "capabilities"),
    "subscribe": ("id", "filter", "from", "capture", "experimental"),
    "subscribed": ("id",),
    "unsubscribe": ("id",),
    "unsubscribed": ("id",),
    "error": ("code", "detail", "id", "cause", "versions"),
    "replay-exhausted": ("sub", "session", "earliest"),
    "closing": ("reason", "delivered"),
    "ping": ("t",),
    "pong": ("t",),
    "roster": ("id", "entries"),
    "aep-relay": ("relay", "link", "fed_by"),
}
"""The types of frame that are known, relays' own one included, and what is read of each."""

MAX_OPEN_BYTES: Final = 64 << 10
"""The longest object that is looked through for what in it can be read."""

MAX_OPEN_LEVELS: Final = 4
"""How deep that goes."""

MAX_OPEN_MEMBERS: Final = 256
"""Of how many members in all."""

_OPEN_ENDED: Final = frozenset({"identity", "capabilities", "experimental"})
"""Members that hold what others have yet to think of."""

_TYPE_NAME = re.compile(rb'"(?:t|\\u0074)(?:y|\\u0079)(?:p|\\u0070)(?:e|\\u0065)"[ \t\r\n]*+:')
_TWICE: Final = "a member name occurs twice"


def read(text: bytes, type_: str) -> Frame:
    """Return what is known of the frame that the JSON object ``text``, whose ``type`` is ``type_``, holds.

    Raises ``JsonError`` if it is not what every reader would take it for: a known member is not strict JSON, or a name
    occurs twice, which among the members of an unknown type only ``type`` must not.
    """
    known = MEMBERS.get(type_)
    if known is None:
        if len(_TYPE_NAME.findall(text)) > 1 and [name for name, _ in _all(text)].count("type") > 1:
            raise JsonError(_TWICE)
        return {"type": type_}
    try:
        frame = cast("Frame", loads(text))
    except JsonError as error:
        frame = _beside_unreadable(text, type_, error)
    return {name: frame[name] for name in ("type", *known) if name in frame}


def _beside_unreadable(text: bytes, type_: str, error: JsonError) -> Frame:
    """Return the known members of a frame in which something can't be read.

    Raises ``JsonError`` if it is one of them, and ``error`` where there is more than is looked through.
    """
    try:
        found = _unique(text)
    except (TooIntricate, TooManyParts):
        raise error from None
    frame: Frame = {"type": type_}
    left = iter(range(MAX_OPEN_MEMBERS))
    for name in MEMBERS[type_]:
        if name in found:
            value = found[name]
            frame[name] = _readable(value, MAX_OPEN_LEVELS, left) if name in _OPEN_ENDED else loads(value)
    return frame


def _readable(text: bytes, levels: int, left: Iterator[int]) -> object:
    """Return the value of ``text`` without those members of it, and of the objects in it, that can't be read.

    Raises ``JsonError`` if nothing is left.
    """
    try:
        return loads(text)
    except JsonError:
        if not levels or not text.startswith(b"{") or len(text) > MAX_OPEN_BYTES:
            raise
    value: Frame = {}
    for name, member in _unique(text).items():
        if next(left, None) is None:
            raise JsonError(f"more than {MAX_OPEN_MEMBERS} members beside what can't be read")
        with suppress(JsonError, UnicodeEncodeError):
            name.encode()
            value[name] = _readable(member, levels - 1, left)
    return value


def _all(text: bytes) -> list[tuple[str, bytes]]:
    """Return name and text of each member. Raises like ``skim``, to which the ordinary is not left: it takes longer."""
    try:
        return members(text, MAX_SKIMMED_MEMBERS)
    except (msgspec.DecodeError, RecursionError):
        return skim(text)


def _unique(text: bytes) -> dict[str, bytes]:
    found = _all(text)
    unique = dict(found)
    if len(unique) != len(found):
        raise JsonError(_TWICE)
    return unique
