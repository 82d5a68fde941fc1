"""What a consumer is told of its replay between Events: that something is gone, and that it is over.

In-band, behind all that was handed to it before (AEP-0003 §3.3.3, §5). A pipe is told of neither: it has no frames of
its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aep_relay.protocol import frames, sse
from aep_relay.protocol.framing import Framing

if TYPE_CHECKING:
    from aep_relay.hub.peer import Peer
    from aep_relay.hub.subscriptions import Subscription
    from aep_relay.protocol.position import Position


def replay_exhausted(peer: Peer, subscription: Subscription, session: str, earliest: Position) -> None:
    """Tell ``peer`` that what is held of ``session`` begins at ``earliest``, which is after what it asked for."""
    if peer.framing is Framing.WEBSOCKET:
        peer.push(frames.text_frame(frames.replay_exhausted(subscription.id, session, earliest)))
    else:
        _comment(peer, sse.replay_exhausted(session, earliest))


def replay_complete(peer: Peer) -> None:
    """Tell ``peer`` that a replay which ends has ended; on WebSocket the closing frame says so."""
    if peer.framing is not Framing.WEBSOCKET:
        _comment(peer, sse.REPLAY_COMPLETE)


def _comment(peer: Peer, comment: bytes) -> None:
    if peer.framing is Framing.SSE:
        peer.push(sse.chunk(comment))
    elif peer.framing is Framing.SSE_UNCHUNKED:
        peer.push(comment)
