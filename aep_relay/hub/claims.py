"""Claims: which live connections emit which session (AEP-0003 §4.1).

A connection claims a session by sending a session-scoped Event for it; the claim lasts until the connection ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from aep_relay.hub.peer import Peer
    from aep_relay.hub.policy import Grants


_ENTRY_BYTES = len('{"session":"",},')

_write = msgspec.json.Encoder().encode


class Claims:
    """The claimants of each session, in the order of their claims."""

    __slots__ = ("_begun", "_by_session", "size_bytes")

    def __init__(self) -> None:
        self._by_session: dict[str, dict[Peer, None]] = {}
        self._begun: dict[Peer, dict[str, bytes]] = {}
        """By claimant and session, how the entry in a roster begins."""
        self.size_bytes = 0
        """About how long a roster of them all is."""

    def __len__(self) -> int:
        return len(self._by_session)

    def claim(self, peer: Peer, session: str) -> None:
        """Record that ``peer`` emits ``session``."""
        if peer.claims is None:
            peer.claims = set()
        peer.claims.add(session)
        added_bytes = added_by(peer, session)
        peer.claim_bytes += added_bytes
        self.size_bytes += added_bytes
        self._by_session.setdefault(session, {})[peer] = None
        self._begun.setdefault(peer, {})[session] = b'{"session":%b' % _write(session)

    def release(self, peer: Peer) -> None:
        """Drop every claim of ``peer``."""
        for session in peer.claims or ():
            claimants = self._by_session[session]
            del claimants[peer]
            if not claimants:
                del self._by_session[session]
        self._begun.pop(peer, None)
        peer.claims = None
        self.size_bytes -= peer.claim_bytes
        peer.claim_bytes = 0

    def of(self, session: str) -> list[Peer]:
        """Return the live claimants of ``session``."""
        return list(self._by_session.get(session, ()))

    def roster(self, grants: Grants | None = None) -> list[dict[str, object]]:
        """Return one entry for each live claim that may be seen, declarations verbatim (AEP-0003 §4.1 rule 4).

        Connection by connection, each one's in the order of its claims.
        """
        return [{"session": session} | declared(peer) for session, peer in self._seen(grants)]

    def roster_text(self, grants: Grants | None = None) -> msgspec.Raw:
        """Return the same as JSON: how a session's entry begins is kept, and what a connection declared, which ends
        each of its entries, is written once for all of them."""
        entries: Mapping[Peer, Iterable[bytes]] = {
            peer: begun.values() for peer, begun in self._begun.items()
        }
        if grants is not None and not grants.sees_all:
            seen: dict[Peer, list[bytes]] = {}
            for session, peer in self._seen(grants):
                seen.setdefault(peer, []).append(self._begun[peer][session])
            entries = seen
        parts: list[bytes] = []
        for peer, begun in entries.items():
            # Of the object, what follows its brace.
            rest = _write(declared(peer))[1:]
            rest = b"," + rest if len(rest) > 1 else rest
            parts.append((rest + b",").join(begun) + rest)
        return msgspec.Raw(b"[%b]" % b",".join(parts))

    def _seen(self, grants: Grants | None) -> Iterator[tuple[str, Peer]]:
        for peer, sessions in self._begun.items():
            for session in sessions:
                if grants is None or grants.may_meet(session, peer.agent):
                    yield session, peer


def added_by(peer: Peer, session: str) -> int:
    """Return about how much a claim of ``session`` by ``peer`` adds to a roster."""
    return len(session) + peer.declared_bytes + _ENTRY_BYTES


def declared(peer: Peer) -> dict[str, object]:
    """Return what each of the peer's roster entries says besides its session, as it was declared."""
    entry: dict[str, object] = {}
    identity = peer.identity or {}
    for name in ("agent", "instance"):
        if name in identity:
            entry[name] = identity[name]
    if peer.control is not None:
        entry["control"] = peer.control
    if peer.emits is not None:
        entry["emits"] = peer.emits
    return entry
