"""Positions of a session, the points consumers resume from, and their spelling in SSE.

Invariants: a position is the pair ``(epoch, seq)``, compared as such and never packed or rounded; both are
integers from 0 to 2**63 - 1. AEP-0001 §7.1, AEP-0003 §3.3, §5, §7.
"""

from __future__ import annotations

import re
from typing import Final, Literal, NamedTuple

from aep_relay.protocol.errors import InvalidFilter, InvalidParameter
from aep_relay.protocol.jsontext import JsonError, exact_integer, loads

Position = tuple[int, int]
"""``(epoch, seq)``, ordered lexicographically."""

MAX_POSITION: Final = 2**63 - 1
"""The largest ``epoch`` and the largest ``seq``."""

MAX_FROM_CHARS: Final = 1 << 20
"""The longest ``from`` parameter that is parsed. How many positions are accepted is the relay's limit."""

_ALL: Final = "all"
_UNSIGNED = re.compile(r"[0-9]{1,19}")
MAX_EVENT_ID_SESSION_BYTES: Final = 16 << 10
"""The longest session, in UTF-8, in an SSE ``id``: it comes back in a header, and heads are bounded."""

_LOST_IN_A_HEADER = re.compile("[\0-\x08\x0a-\x1f\x7f]|^[ \t]")


class ResumePoint(NamedTuple):
    """Deliver what comes strictly after ``position`` in ``session`` (AEP-0003 §7)."""

    session: str
    position: Position


def parse_from(value: object) -> list[ResumePoint] | Literal["all"]:
    """Return the resume points of a ``from`` member: an array of triples, or ``"all"``.

    ``epoch`` may be absent (0); members that are not named here are ignored. Raises :class:`InvalidFilter`,
    the refusal of a malformed ``from`` (AEP-0003 §6.5).
    """
    if value == _ALL:
        return "all"
    if not isinstance(value, list):
        raise InvalidFilter('from: neither an array of positions nor "all"')
    return [_point(item, index) for index, item in enumerate(value)]


def parse_from_json(text: str) -> list[ResumePoint] | Literal["all"]:
    """Return the resume points of a ``from`` parameter: JSON, or the bare literal ``all`` (AEP-0003 §3.3,
    §5).

    Raises :class:`InvalidParameter` naming ``from``.
    """
    if text == _ALL:
        return "all"
    if len(text) > MAX_FROM_CHARS:
        raise InvalidParameter("from", f"longer than {MAX_FROM_CHARS} characters")
    try:
        return parse_from(loads(text))
    except JsonError as error:
        raise InvalidParameter("from", f'neither an array of positions nor "all": {error}') from None
    except InvalidFilter as error:
        raise InvalidParameter("from", str(error).removeprefix("from: ")) from None


def parse_last_event_id(raw: bytes | str) -> ResumePoint:
    """Return the resume point of a ``Last-Event-ID`` value ``{session}:{epoch}:{seq}``, UTF-8 (AEP-0003
    §3.3).

    Read from the right, since a session may hold colons. Raises :class:`InvalidParameter`.
    """
    try:
        text = raw if isinstance(raw, str) else raw.decode()
    except UnicodeDecodeError:
        raise InvalidParameter("Last-Event-ID", "not UTF-8") from None
    session, *rest = text.rsplit(":", 2)
    if not session or len(rest) != 2 or not all(map(_UNSIGNED.fullmatch, rest)):
        raise InvalidParameter("Last-Event-ID", "not {session}:{epoch}:{seq}")
    epoch, seq = map(int, rest)
    if max(epoch, seq) > MAX_POSITION:
        raise InvalidParameter("Last-Event-ID", f"epoch and seq are at most {MAX_POSITION}")
    return ResumePoint(session, (epoch, seq))


def event_id(session: str, position: Position) -> str | None:
    """Return the SSE ``id`` of a position, or ``None`` if ``session`` cannot stand in one."""
    prefix = event_id_prefix(session)
    return None if prefix is None else f"{prefix}{position[0]}:{position[1]}"


def event_id_prefix(session: str) -> str | None:
    """Return what the SSE ``id`` of every position in ``session`` begins with, or ``None``.

    An ``id`` has to stand in one line of SSE and to survive the ``Last-Event-ID`` header, which holds no control
    character, has its outer white space dropped, and is bounded. A client that could not send back the last ``id`` it
    was given would never get in again.
    """
    if _LOST_IN_A_HEADER.search(session) or len(session.encode()) > MAX_EVENT_ID_SESSION_BYTES:
        return None
    return f"{session}:"


def _point(item: object, index: int) -> ResumePoint:
    if not isinstance(item, dict):
        raise InvalidFilter(f"from: item {index} is not an object")
    session, epoch, seq = item.get("session"), item.get("epoch", 0), item.get("seq")
    if not isinstance(session, str) or not session:
        raise InvalidFilter(f"from: item {index} has no session")
    if not (
        type(epoch) is int and type(seq) is int and 0 <= epoch <= MAX_POSITION and 0 <= seq <= MAX_POSITION
    ):
        # There are thousands in a request, and next to all are as they should be.
        epoch, seq = _count(epoch, "epoch", index), _count(seq, "seq", index)
    return ResumePoint(session, (epoch, seq))


def _count(value: object, name: str, index: int) -> int:
    number = exact_integer(value)
    if number is None or not 0 <= number <= MAX_POSITION:
        raise InvalidFilter(f"from: {name} of item {index} is not an integer from 0 to {MAX_POSITION}")
    return number
