"""``GET /healthz`` and ``GET /connections``: what clients ask a relay about itself on its data port."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import trio

from aep_relay.protocol.registry import CAPTURES
from aep_relay.transport.turn import Turn

if TYPE_CHECKING:
    from aep_relay.bindings.service import Service
    from aep_relay.hub.peer import Peer

MAX_FILTER_CHARS: Final = 1024
"""Of a longer filter only the length is shown: it may have a MiB, and a connection hundreds of them."""


def health(service: Service, *, authenticated: bool) -> dict[str, object]:
    """Return the health document: ``ok`` for anyone, counts for who holds a token or needs none."""
    document: dict[str, object] = {"ok": not service.draining}
    if authenticated:
        relay = service.relay
        document["sessions"] = len(relay.store)
        document["subscribers"] = sum(1 for peer in relay.peers.values() if peer.subscriptions)
        document["connections"] = service.open_connections
        document["uptime_s"] = int(trio.current_time() - service.started_at)
    return document


async def connections(service: Service) -> bytes:
    """Return every live stream and socket with what it declared, emits and consumes, as JSON; besides, the state of
    every upstream link, and the circles of relays that were found and refused.

    Others run in between: there may be thousands, each with hundreds of subscriptions.
    """
    peers, turn = service.relay.peers, Turn()
    text = bytearray(b'{"connections":[')
    separator = b""
    for peer in list(peers.values()):
        if peer.id in peers:
            text += separator
            text += msgspec.json.encode(_connection(peer))
            separator = b","
        if turn.over:
            await turn.pass_on()
    links = msgspec.json.encode(service.links())
    loops = msgspec.json.encode(service.relay.feeders.describe())
    text += b'],"links":%b,"loops":%b}' % (links, loops)
    document = bytes(text)
    # To copy as much as it may be takes some milliseconds, and so does what comes next.
    await turn.pass_on()
    return document


def _filter(text: str) -> dict[str, object]:
    if len(text) > MAX_FILTER_CHARS:
        return {"filter": None, "filter_chars": len(text)}
    return {"filter": msgspec.Raw(text.encode())}


def _connection(peer: Peer) -> dict[str, object]:
    return {
        "id": peer.id,
        "binding": peer.binding,
        "remote": peer.name,
        "role": peer.role,
        "token_name": None if peer.grants is None else peer.grants.name or None,
        "identity": peer.identity,
        "card": peer.card,
        "accepts": sorted(peer.accepts or ()),
        "sessions": sorted(peer.claims or ()),
        "subscriptions": [
            {
                "id": subscription.id,
                **_filter(subscription.filter.text),
                "capture": None if subscription.ceiling is None else CAPTURES[subscription.ceiling],
                "replaying": subscription.replay is not None,
            }
            for subscription in peer.subscriptions.values()
        ],
        "received_events": peer.received_events,
        "delivered_events": peer.delivered_events,
        "dropped_events": peer.outbox.dropped_events,
        "queued_bytes": peer.outbox.queued_bytes,
    }
