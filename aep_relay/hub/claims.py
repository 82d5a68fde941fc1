"""Claims: which live connections emit which session (AEP-0003 §4.1).

A connection claims a session by sending a session-scoped Event for it; the claim lasts until the connection ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aep_relay.hub.peer import Peer
    from aep_relay.hub.policy import Grants


class Claims:
    """The claimants of each session, in the order of their claims."""

    __slots__ = ("_by_session",)

    def __init__(self) -> None:
        self._by_session: dict[str, dict[Peer, None]] = {}

    def __len__(self) -> int:
        return len(self._by_session)

    def claim(self, peer: Peer, session: str) -> None:
        """Record that ``peer`` emits ``session``."""
        if peer.claims is None:
            peer.claims = set()
        peer.claims.add(session)
        self._by_session.setdefault(session, {})[peer] = None

    def release(self, peer: Peer) -> None:
        """Drop every claim of ``peer``."""
        for session in peer.claims or ():
            claimants = self._by_session[session]
            del claimants[peer]
            if not claimants:
                del self._by_session[session]
        peer.claims = None

    def of(self, session: str) -> list[Peer]:
        """Return the live claimants of ``session``."""
        return list(self._by_session.get(session, ()))

    def roster(self, grants: Grants | None = None) -> list[dict[str, object]]:
        """Return one entry for each live claim that may be seen, declarations verbatim (AEP-0003 §4.1 rule 4)."""
        return [
            _entry(peer, session)
            for session, peers in self._by_session.items()
            for peer in peers
            if grants is None or grants.may_meet(session, peer.agent)
        ]


def _entry(peer: Peer, session: str) -> dict[str, object]:
    entry: dict[str, object] = {"session": session}
    identity = peer.identity or {}
    for name in ("agent", "instance"):
        if name in identity:
            entry[name] = identity[name]
    if peer.control is not None:
        entry["control"] = peer.control
    if peer.emits is not None:
        entry["emits"] = peer.emits
    return entry
