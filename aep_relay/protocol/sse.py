"""Server-Sent Events: messages, comments, and the HTTP chunks that carry them.

Invariants: an Event is one message with one ``data:`` line, and what it is made of holds no line break; an
``id:`` stands only where a consumer can resume from it; a chunk holds whole messages, so that no character is
split across two. AEP-0003 §3.3; WHATWG HTML §9.2.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from aep_relay.protocol.position import event_id_prefix

if TYPE_CHECKING:
    from aep_relay.protocol.event import Event
    from aep_relay.protocol.position import Position

PING: Final = b": ping\n\n"
"""The heartbeat (AEP-0003 §3.3.4)."""

REPLAY_COMPLETE: Final = b": replay-complete\n\n"
"""The last of a stream that was asked to replay and end."""

_BREAKS_A_LINE = re.compile("[\0\r\n]")


_heads: dict[tuple[str, str | None], tuple[bytes, bool]] = {}
"""By type and session: what a message begins with, and whether the rest of an ``id`` comes next."""

_MAX_HEADS: Final = 4096
_MAX_HEAD_CHARS: Final = 512


def message(event: Event, line: bytes) -> bytes:
    """Return the message of ``event``, whose text is ``line``: one line, at the consumer's ceiling.

    The ``id`` is there for Events with a position whose session can stand in a line (AEP-0003 §3.3.2).
    """
    position = event.position
    session = None if position is None else event.session
    found = _heads.get((event.type, session))
    if found is None:
        found = _begin(event.type, session)
    head, resumable = found
    if resumable and position is not None:
        return b"%b%d:%d\ndata: %b\n\n" % (head, position[0], position[1], line)
    return b"%bdata: %b\n\n" % (head, line)


def _begin(type_: str, session: str | None) -> tuple[bytes, bool]:
    prefix = None if session is None else event_id_prefix(session)
    head = f"event: {type_}\n" if prefix is None else f"event: {type_}\nid: {prefix}"
    found = (head.encode(), prefix is not None)
    if len(head) <= _MAX_HEAD_CHARS:
        if len(_heads) >= _MAX_HEADS:
            _heads.clear()
        _heads[type_, session] = found
    return found


def comment(text: str) -> bytes:
    """Return ``text`` as a comment. What would end its line is percent-encoded."""
    return b": %b\n\n" % _BREAKS_A_LINE.sub(lambda match: quote(match[0]), text).encode()


def replay_exhausted(session: str, earliest: Position) -> bytes:
    """Return the comment that says what is held of ``session`` begins at ``earliest`` (AEP-0003 §3.3.3).

    A session that can't stand in a line is percent-encoded whole.
    """
    name = quote(session, safe="") if _BREAKS_A_LINE.search(session) else session
    return b": replay-exhausted %b %d:%d\n\n" % (name.encode(), *earliest)


def chunk(data: bytes) -> bytes:
    """Return ``data``, which is not empty, as one chunk of a chunked HTTP/1.1 body (RFC 9112 §7.1)."""
    return b"%x\r\n%b\r\n" % (len(data), data)
