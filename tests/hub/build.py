"""Events, filters and relays for tests of the hub."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

from aep_relay.hub.limits import Limits
from aep_relay.hub.relay import Relay
from aep_relay.protocol.event import Event, decode
from aep_relay.protocol.filters import EMPTY, Filter
from aep_relay.protocol.framing import Framing
from tests.fakes.sink import MemorySink

if TYPE_CHECKING:
    from aep_relay.hub.buffer import Lost
    from aep_relay.hub.peer import Peer
    from aep_relay.hub.replay import From
    from aep_relay.protocol.position import Position

ROUTED = "attention.routed"


def event(id_: str, seq: int | None = None, *, session: str | None = "s", **members: Any) -> Event:
    """An Event: of a session with ``seq``, else a rider unless ``members`` say otherwise; ``severity`` is notice."""
    made: dict[str, Any] = {
        "aep": "0.1",
        "id": id_,
        "type": ROUTED if seq is None else "tool.completed",
        "time": "2026-07-03T10:15:04Z",
        "source": "aep://host-a/agent/coder",
        "agent": "coder",
        "session": session,
        "seq": seq,
        "severity": "notice",
    }
    made |= members
    text = json.dumps({name: value for name, value in made.items() if value is not None}, ensure_ascii=False)
    return decode(text.encode())


def command(id_: str, session: str = "s", type_: str = "control.cancel", **members: Any) -> Event:
    """A command to ``session``."""
    return event(id_, session=session, type=type_, **members)


def exhausted(lost: Lost | None, position: Position) -> bool:
    """Whether what is ``lost`` is missed by whoever resumes from ``position``."""
    return lost is not None and lost.after(position)


def relay(**limits: Any) -> Relay:
    """A relay with these limits."""
    return Relay(dataclasses.replace(Limits(), **limits))


def consumer(
    hub: Relay,
    filter_: Filter = EMPTY,
    from_: From = None,
    *,
    framing: Framing = Framing.WEBSOCKET,
    capacity_bytes: int | None = None,
    ceiling: int | None = None,
) -> Peer:
    """Attach a connection with one subscription, ``sub``."""
    peer = hub.attach("test", framing, MemorySink(capacity_bytes))
    assert hub.subscribe(peer, "sub", filter_, ceiling, from_) is None
    return peer


def sink(peer: Peer) -> MemorySink:
    """The sink of ``peer``."""
    assert isinstance(peer.sink, MemorySink)
    return peer.sink


def ingest(hub: Relay, *events: Event) -> None:
    """Ingest and flush."""
    for item in events:
        assert hub.ingest(item) is None
    flush(hub)


def flush(hub: Relay) -> None:
    """Flush whatever is left to flush."""
    while hub.flush():
        pass


def drain(hub: Relay, peer: Peer) -> None:
    """Drain ``peer`` until nothing is left or its sink takes no more."""
    while hub.drain_peer(peer):
        if peer.outbox and sink(peer).capacity_bytes == 0:
            return


def assert_empty(relay: Relay) -> None:
    """Nothing is left of connections that are over."""
    index = relay.fanout.index
    assert not relay.peers
    assert not relay._behind
    assert not len(relay.claims)
    assert not index.groups
    assert not index._by_session
    assert not index._by_agent
    assert not index._by_type
    assert not index._by_prefix
    assert not index._scanned
    assert index.weight == 0
    assert relay.membership.predicates == 0
    assert not relay.fanout.cohorts
    assert (relay.fanout.places, relay.fanout.solos) == (0, 0)
    assert not relay.fanout._dirty
    assert relay.fanout._pass is None
    assert relay.fanout.backlog_bytes == 0
