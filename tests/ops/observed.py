"""A relay for the operator plane to look at: a real hub, everything around it made up."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx
import trio

from aep_relay.config import Config
from aep_relay.hub.policy import ANONYMOUS, FULL, Grants
from aep_relay.hub.relay import Relay
from aep_relay.ops import access, app, links, server
from aep_relay.ops.observer import Observer
from aep_relay.protocol.errors import Unauthorized
from aep_relay.protocol.event import decode
from aep_relay.protocol.filters import EMPTY
from aep_relay.protocol.framing import Framing
from aep_relay.transport import sockets
from tests.fakes.sink import MemorySink

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aep_relay.hub.peer import Peer
    from aep_relay.transport.request import Request

TOKEN = "operators-token"
WATCHER = "token-without-operate"


class Door:
    """Knows two tokens, or none."""

    def __init__(self, *, token: bool = False) -> None:
        self.open = not token

    def grants(self, request: Request) -> Grants:
        if self.open:
            return ANONYMOUS
        given = request.get_all(b"authorization")
        if given == [f"Bearer {TOKEN}".encode()]:
            return FULL
        if given == [f"Bearer {WATCHER}".encode()]:
            return Grants(authenticated=True)
        raise Unauthorized("a bearer token is required")


@dataclass
class Observation:
    """What ``ops.observed.Observed`` asks for."""

    config: Config = field(default_factory=Config)
    authority: Door = field(default_factory=Door)
    draining: bool = False
    open_connections: int = 0
    started_at: float = 0.0
    addresses: list[object] = field(default_factory=lambda: [("127.0.0.1", 8787)])
    checks: dict[str, Callable[[], str | None]] = field(default_factory=dict)
    links: Callable[[], list[dict[str, object]]] = list
    counts: Callable[[], dict[str, tuple[str, int]]] = dict
    own_origins: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.relay = Relay(self.config.limits)


def event(number: int, session: str = "s", **attributes: object) -> bytes:
    """Return a valid Event."""
    return json.dumps(
        {
            "aep": "0.1",
            "id": f"e{number}",
            "type": "run.started",
            "time": "2026-01-01T00:00:00Z",
            "source": f"aep://host/{session}",
            "agent": "agent",
            "session": session,
            "seq": number,
            **attributes,
        }
    ).encode()


def consumer(relay: Relay, *, capacity_bytes: int | None = None) -> Peer:
    """Attach a consumer of everything that takes ``capacity_bytes``, None for any number."""
    peer = relay.attach("websocket", Framing.WEBSOCKET, MemorySink(capacity_bytes))
    peer.agent = "watcher"
    assert relay.subscribe(peer, "all", EMPTY, None) is None
    return peer


def ingest(relay: Relay, *raws: bytes) -> None:
    """Take Events in and hand them out."""
    for raw in raws:
        assert relay.ingest(decode(raw)) is None
    while relay.flush():
        pass


def relay_with_everything() -> Observation:
    """A relay of which every metric has at least one value."""
    service = Observation(
        links=lambda: [
            {
                "name": "hub",
                "kind": "push",
                "state": "up",
                "given_up_events": {"debug": 2, "error": 1},
                **dict.fromkeys([*links.COUNTERS, *links.GAUGES], 1),
            }
        ],
        counts=lambda: {"archive_events_lost": ("Events that the archive's disk did not take in time", 3)},
    )
    consumer(service.relay)
    ingest(service.relay, event(1), event(2))
    service.relay.stats.refused("no-route")
    service.relay.stats.disconnected("slow-consumer")
    service.relay.feeders.found(("b1", "a1"))
    return service


@asynccontextmanager
async def serving(service: Observation, **options: bool) -> AsyncIterator[tuple[httpx.AsyncClient, int]]:
    """Serve the operator plane of ``service`` on a free port; yield a client of it and the port."""
    listeners = await sockets.open_tcp("127.0.0.1", 0)
    port = listeners[0].getsockname()[1]
    service.own_origins |= access.own_origins("127.0.0.1", [("127.0.0.1", port)])
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve, app.build(Observer(service), **options), listeners)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
            yield client, port
        nursery.cancel_scope.cancel()


def bearer(token: str) -> dict[str, str]:
    """Return the header that shows ``token``."""
    return {"Authorization": f"Bearer {token}"}


def members(document: Any) -> Iterator[Any]:
    """Yield every value in a JSON document."""
    yield document
    values = (
        document.values() if isinstance(document, dict) else document if isinstance(document, list) else ()
    )
    for value in values:
        yield from members(value)
