"""Claims: which live connections emit which session (AEP-0003 §4.1).

A connection claims a session by sending a session-scoped Event for it; the claim lasts until the connection ends.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from aep_relay.hub.peer import Peer
    from aep_relay.hub.policy import Grants

STEP_CLAIMS = 256
"""So many are written before others may have a turn: under a millisecond, whatever a token lets be seen."""

MAX_PASSES = 10
"""So often a roster is brought up to date with what was claimed while it was being written."""

_ENTRY_BYTES = len('{"session":"",},')

_write = msgspec.json.Encoder().encode


@dataclass(slots=True)
class _Written:
    """What is written of one connection's part of a roster."""

    begun: dict[str, bytes]
    """Its claims, in their order: more may come, and none goes while the connection lasts."""
    claims: int = 0
    """How many of them have been looked at."""
    parts: list[bytes] = field(default_factory=list)


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

    def entries(self, grants: Grants | None = None) -> Iterator[dict[str, object]]:
        """Yield one entry for each live claim that may be seen, declarations verbatim (AEP-0003 §4.1 rule 4).

        Connection by connection, each one's in the order of its claims. Others may claim and leave meanwhile.
        """
        for peer, begun in list(self._begun.items()):
            for session in list(begun):
                if grants is None or grants.may_meet(session, peer.agent):
                    yield {"session": session} | declared(peer)

    def write_roster(self, grants: Grants | None = None) -> Generator[None, None, msgspec.Raw]:
        """Return them as JSON, written in steps: after each others may have a turn, and claim and leave meanwhile.

        What is returned is what holds in the end: what was written of who has left goes, what was claimed since comes.
        How a session's entry begins is kept, and what a connection declared, which ends each of its entries, is
        written once for many of them.
        """
        written: dict[Peer, _Written] = {}
        for passes in range(MAX_PASSES + 1):
            is_last = True
            looked_at = 0
            for peer, begun in list(self._begun.items()):
                known = written.get(peer)
                if known is None or known.begun is not begun:
                    known = written[peer] = _Written(begun)
                count = len(begun)
                while known.claims < count:
                    looked_at += _write_on(peer, known, grants)
                    if looked_at >= STEP_CLAIMS and passes < MAX_PASSES:
                        yield
                        is_last = False
                        looked_at = 0
            if is_last:
                break
        parts = [part for peer in self._begun for part in written[peer].parts]
        return msgspec.Raw(b"[%b]" % b",".join(parts))


def _write_on(peer: Peer, written: _Written, grants: Grants | None) -> int:
    """Write some more claims of ``peer``, those that may be seen; return at how many it looked."""
    begun, start = written.begun, written.claims
    fresh = list(islice(begun.items(), start, start + STEP_CLAIMS))
    written.claims += len(fresh)
    texts = [text for session, text in fresh if grants is None or grants.may_meet(session, peer.agent)]
    if texts:
        # Of the object, what follows its brace.
        rest = _write(declared(peer))[1:]
        rest = b"," + rest if len(rest) > 1 else rest
        written.parts.append((rest + b",").join(texts) + rest)
    return len(fresh)


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
