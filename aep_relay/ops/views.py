"""``/connections``, ``/sessions``, ``/roster`` and the numbers on the dashboard.

The hub is read in slices with a checkpoint after each, so that twenty thousand connections do not hold up the loop;
a document is a look at the relay while it runs, not a snapshot.
"""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec
import trio

from aep_relay.protocol.errors import safe_text

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from aep_relay.hub.peer import Peer
    from aep_relay.hub.relay import Relay
    from aep_relay.ops.observed import Observed
    from aep_relay.protocol.position import Position

SLICE_ITEMS = 100
"""So many are described before other tasks get a turn: under a millisecond."""
SLICE_BYTES = 64 * 1024
SLICE_PEERS = 1_000
"""So many are only counted."""
MAX_SUBSCRIPTIONS = 20
"""Subscriptions of one connection that are listed."""
MAX_CHARACTERS = 500
"""Of one text that a peer chose."""


async def listing(name: str, describe: Callable[[], Iterable[object]]) -> AsyncIterator[bytes]:
    """Yield the JSON text ``{name: [...]}`` piece by piece; ``describe`` yields the members."""
    piece = bytearray(b'{"%b":[' % name.encode("ascii"))
    for count, item in enumerate(describe()):
        if count:
            piece += b","
        piece += msgspec.json.encode(item)
        if count % SLICE_ITEMS == SLICE_ITEMS - 1 or len(piece) > SLICE_BYTES:
            yield bytes(piece)
            piece.clear()
            await trio.lowlevel.checkpoint()
    yield bytes(piece + b"]}")


def connections(relay: Relay, now_seconds: float) -> Iterable[dict[str, object]]:
    """Describe every live stream and socket: what it declared, what it emits and consumes, how far it is behind."""
    return (connection(peer, now_seconds) for peer in list(relay.peers.values()))


def connection(peer: Peer, now_seconds: float) -> dict[str, object]:
    """Describe one connection."""
    outbox = peer.outbox
    subscriptions = list(peer.subscriptions.values())
    return {
        "id": peer.id,
        "binding": peer.binding,
        "remote": peer.name,
        "role": peer.role,
        "token_name": None if peer.grants is None else peer.grants.name or None,
        "card": peer.card,
        "agent": _text(peer.agent),
        "instance": _text(peer.instance),
        "accepts": sorted(peer.accepts or ()),
        "sessions": sorted(peer.claims or ()),
        "subscriptions": [
            {
                "id": subscription.id,
                "filter": _text(subscription.filter.key),
                "capture": subscription.ceiling,
                "replaying": subscription.replay is not None,
            }
            for subscription in subscriptions[:MAX_SUBSCRIPTIONS]
        ],
        "subscription_count": len(subscriptions),
        "received_events": peer.received_events,
        "delivered_events": peer.delivered_events,
        "dropped_events": outbox.dropped_events,
        "queued_bytes": outbox.queued_bytes,
        "sent_bytes": outbox.sent_bytes,
        "stalled_seconds": None if peer.progress is None else round(now_seconds - peer.progress[1], 1),
        "closing": peer.closing,
    }


def _text(value: object) -> str | None:
    return safe_text(value, MAX_CHARACTERS) if isinstance(value, str) else None


def sessions(relay: Relay) -> Iterable[dict[str, object]]:
    """Describe every session of which something is held, the one written last first."""
    for name in reversed(list(relay.store)):
        buffer = relay.store.get(name)
        if buffer is None:
            continue
        yield {
            "session": name,
            "events": len(buffer),
            "bytes": buffer.size_bytes,
            "earliest": _position(buffer.earliest()),
            "latest": _position(buffer.tail()),
            "lost": None if buffer.lost is None else _position(buffer.lost.position),
            "claimants": [peer.id for peer in relay.claims.of(name)],
        }


def _position(position: Position) -> dict[str, int] | None:
    return None if position[1] < 0 else {"epoch": position[0], "seq": position[1]}


@dataclass(slots=True)
class Tally:
    """Sums over all live connections."""

    bindings: Counter[str] = field(default_factory=Counter)
    roles: Counter[str] = field(default_factory=Counter)
    subscriptions: int = 0
    behind: int = 0
    """Connections with bytes pending."""
    replaying: int = 0
    queued_bytes: int = 0
    dropped_events: int = 0
    """Over the relay's life: of those that are gone and of those that live."""
    worst: list[Peer] = field(default_factory=list)
    """The consumers that are furthest behind."""


async def tally(relay: Relay, worst: int = 0) -> Tally:
    """Count over all connections in slices, and find the ``worst`` consumers by what they have pending."""
    # The counter and the list belong together: who leaves later is in the list and not yet in the counter.
    found = Tally(dropped_events=relay.stats.dropped_events)
    peers = list(relay.peers.values())
    for start in range(0, len(peers), SLICE_PEERS):
        if start:
            await trio.lowlevel.checkpoint()
        part = peers[start : start + SLICE_PEERS]
        for peer in part:
            _count(found, peer)
        if worst:
            consumers = [peer for peer in part if peer.subscriptions]
            found.worst = heapq.nlargest(worst, [*found.worst, *consumers], key=_burden)
    return found


def _count(found: Tally, peer: Peer) -> None:
    outbox = peer.outbox
    found.bindings[peer.binding] += 1
    found.roles[peer.role] += 1
    found.dropped_events += outbox.dropped_events
    if peer.subscriptions:
        found.subscriptions += len(peer.subscriptions)
        found.replaying += peer.replaying
    if outbox:
        found.behind += 1
        found.queued_bytes += outbox.queued_bytes


def _burden(peer: Peer) -> tuple[int, int, int]:
    return peer.outbox.queued_bytes, peer.outbox.dropped_events, -peer.id


def uptime_seconds(service: Observed) -> int:
    """Return for how long the relay has been running."""
    return int(trio.current_time() - service.started_at)
