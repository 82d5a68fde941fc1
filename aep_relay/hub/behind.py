"""Connections whose sockets take no more, and since when (AEP-0003 §8.4).

Below the hard limit a slow consumer is kept, however slow; one that takes no byte at all for too long is gone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aep_relay.hub.peer import Peer

MAX_AT_ONCE = 64
"""So many are found to be gone at a time: what the system holds for each takes a while to give up."""


class Behind:
    """Connections with bytes pending."""

    __slots__ = ("_peers",)

    def __init__(self) -> None:
        self._peers: dict[Peer, None] = {}

    def __len__(self) -> int:
        return len(self._peers)

    def watch(self, peer: Peer) -> None:
        """Look at ``peer`` from now on until it has caught up."""
        if not peer.patient:
            self._peers[peer] = None

    def forget(self, peer: Peer) -> None:
        """Look at ``peer`` no longer."""
        self._peers.pop(peer, None)

    def stalled(self, now_seconds: float, timeout_seconds: float) -> list[Peer]:
        """Return, and forget, connections that took no byte for ``timeout_seconds`` while bytes were pending.

        At most ``MAX_AT_ONCE``: when it is as many, there may be more.
        """
        found: list[Peer] = []
        for peer in list(self._peers):
            outbox = peer.outbox
            if not outbox:
                peer.progress = None
                del self._peers[peer]
            elif peer.progress is None or peer.progress[0] != outbox.sent_bytes:
                peer.progress = (outbox.sent_bytes, now_seconds)
            elif now_seconds - peer.progress[1] >= timeout_seconds:
                del self._peers[peer]
                found.append(peer)
                if len(found) >= MAX_AT_ONCE:
                    break
        return found
