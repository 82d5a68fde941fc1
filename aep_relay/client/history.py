"""What a relay holds, read once to its end: ``/stream`` with ``live=0`` (AEP-0003 §3.3, §5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from aep_relay.client.sse import Comment, open_events
from aep_relay.protocol.errors import InvalidEvent
from aep_relay.protocol.event import decode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aep_relay.client.target import Target
    from aep_relay.protocol.event import Event
    from aep_relay.protocol.position import Position

    Points = Sequence[tuple[str, Position]]

MAX_EVENT_BYTES = 64 << 20
"""Whatever the relay's own limit is."""

_EXHAUSTED = "replay-exhausted "


def points(from_: Points) -> list[dict[str, object]]:
    """Return resume positions as ``from`` has them (AEP-0003 §7)."""
    return [{"session": session, "epoch": epoch, "seq": seq} for session, (epoch, seq) in from_]


async def held(
    target: Target,
    filter_: dict[str, object],
    take: Callable[[Event], None],
    tell: Callable[[str], None],
    *,
    from_: Points | None = None,
    capture: str | None = None,
) -> None:
    """Hand every Event to ``take`` that is held and matches: all, or what comes after ``from_``.

    ``tell`` is told what is gone from the buffers, and what can't be read. Raises ``Refused``, ``Unreachable`` and
    ``TimedOut``.
    """
    query = {"filter": _json(filter_), "from": "all" if from_ is None else _json(points(from_)), "live": "0"}
    if capture is not None:
        query["capture"] = capture
    async with open_events(target, query) as stream:
        while (items := await stream.receive()) is not None:
            for item in items:
                if isinstance(item, Comment):
                    if item.text.startswith(_EXHAUSTED):
                        tell(gone(*item.text.removeprefix(_EXHAUSTED).rsplit(" ", 1)))
                    continue
                try:
                    event = decode(item.data, MAX_EVENT_BYTES)
                except InvalidEvent as error:
                    tell(f"an Event that can't be read is left out: {error.detail}")
                else:
                    take(event)


def gone(session: str, earliest: str = "?") -> str:
    """Return what ``replay-exhausted`` means."""
    return f"session {session}: Events are gone from the relay's buffer; the earliest held position is {earliest}"


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
