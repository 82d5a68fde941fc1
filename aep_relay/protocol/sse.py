"""Server-Sent Events: messages, comments, and the HTTP chunks that carry them.

Invariants: an Event is one message with one ``data:`` line, and what it is made of holds no line break; an
``id:`` stands only where a consumer can resume from it; a chunk holds whole messages, so that no character is
split across two. AEP-0003 §3.3; WHATWG HTML §9.2.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from aep_relay.protocol.position import event_id

if TYPE_CHECKING:
    from aep_relay.protocol.event import Event
    from aep_relay.protocol.position import Position

PING: Final = b": ping\n\n"
"""The heartbeat (AEP-0003 §3.3.4)."""

REPLAY_COMPLETE: Final = b": replay-complete\n\n"
"""The last of a stream that was asked to replay and end."""

_BREAKS_A_LINE = re.compile("[\0\r\n]")


def message(event: Event, line: bytes) -> bytes:
    """Return the message of ``event``, whose text is ``line``: one line, at the consumer's ceiling.

    The ``id`` is there for Events with a position whose session can stand in a line (AEP-0003 §3.3.2).
    """
    position, session = event.position, event.session
    if position is not None and session is not None:
        id_ = event_id(session, position)
        if id_ is not None:
            return b"event: %b\nid: %b\ndata: %b\n\n" % (event.type.encode(), id_.encode(), line)
    return b"event: %b\ndata: %b\n\n" % (event.type.encode(), line)


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
