"""What a consumer is told of its replay between Events: that something is gone, and that it is over.

In-band, behind all that was handed to it before (AEP-0003 §3.3.3, §5). A pipe is told of neither: it has no frames of
its own. That something is gone is queued as an Event is: as long as it has not gone out, no position may be reported
from which it would not be said again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aep_relay.hub.outbox import Mark
from aep_relay.hub.replay import resumable_below
from aep_relay.protocol import frames, sse
from aep_relay.protocol.framing import Framing

if TYPE_CHECKING:
    from aep_relay.hub.buffer import Lost
    from aep_relay.hub.outbox import Batch
    from aep_relay.hub.peer import Peer
    from aep_relay.hub.subscriptions import Subscription
    from aep_relay.protocol.position import Position


def replay_exhausted(framing: Framing, subscription: Subscription, session: str, earliest: Position) -> bytes:
    """Return the frame that says that what is held of ``session`` begins at ``earliest``, which is after what
    ``subscription`` asked for; nothing where there is none."""
    if framing is Framing.WEBSOCKET:
        return frames.text_frame(frames.replay_exhausted(subscription.id, session, earliest))
    return _comment(framing, sse.replay_exhausted(session, earliest))


def add_loss(batch: Batch, frame: bytes, subscription: Subscription, session: str, lost: Lost) -> None:
    """Add ``frame``, which tells ``subscription`` of what is ``lost``, to ``batch``."""
    batch.frames.append(frame)
    batch.marks.append(Mark(session, None, resumable_below(lost), False, 0))
    batch.notices += 1
    batch.size_bytes += len(frame)
    known = subscription.base.get(session)
    batch.before.setdefault((subscription, session), None if known is None else ((0, known),))


def replay_complete(peer: Peer) -> None:
    """Tell ``peer`` that a replay which ends has ended; on WebSocket the closing frame says so."""
    comment = _comment(peer.framing, sse.REPLAY_COMPLETE)
    if comment:
        peer.push(comment)


def _comment(framing: Framing, comment: bytes) -> bytes:
    if framing is Framing.SSE:
        return sse.chunk(comment)
    return comment if framing is Framing.SSE_UNCHUNKED else b""
