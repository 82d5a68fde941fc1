"""What every binding shares: the relay, the configuration, the clock's deadlines, the log."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog
import trio

from aep_relay.bindings.forwarded import Forwarded
from aep_relay.protocol import discovery
from aep_relay.transport.attendant import Attendant
from aep_relay.transport.turn import Turn

if TYPE_CHECKING:
    from collections.abc import Callable

    from aep_relay.bindings.auth import Authority
    from aep_relay.bindings.cards import Inspector
    from aep_relay.config import Config
    from aep_relay.hub.relay import Relay
    from aep_relay.transport.deadlines import Deadlines
    from aep_relay.transport.http import HttpReader


class Service:
    """One running relay, as its bindings see it."""

    def __init__(self, config: Config, relay: Relay, authority: Authority, deadlines: Deadlines) -> None:
        self.config = config
        self.limits = config.limits
        self.relay = relay
        self.authority = authority
        self.deadlines = deadlines
        self.attendant = Attendant()
        self.inspector: Inspector | None = None
        """Checks identity cards; None when nobody does."""
        self.log: structlog.typing.FilteringBoundLogger = structlog.get_logger()
        self.draining = False
        """Set when the relay is on its way out: what still comes is answered 503."""
        self.open_connections = 0
        """Accepted and not yet over, whatever they speak."""
        self.addresses: list[object] = []
        """Where the data port listens, as ``getsockname`` tells it; empty until it does."""
        self.checks: dict[str, Callable[[], str | None]] = {}
        """What else has to hold for the relay to be ready: by name, what answers why not, or None."""
        self.links: Callable[[], list[dict[str, object]]] = list
        """Tells the state of every upstream link."""
        self.counts: Callable[[], dict[str, tuple[str, int]]] = dict
        """Tells what else is counted: by metric name, what it is and how much."""
        self.forwarded = Forwarded(config.listen.trusted_proxies)
        """Knows who asks, where a proxy stands in between."""
        self.writers = 0
        """Connections that are behind and whose sockets take more: each writes once before other tasks get a turn."""
        self.telling = trio.Lock()
        """Held by the one connection of a link that is being told who feeds this relay, which takes a moment."""
        self.own_origins: set[str] = set()
        """Origins of the dashboard, which may use the data port whatever ``cors.allowed_origins`` says."""
        self.started_at = trio.current_time()
        self._describe()
        self.readers: set[HttpReader] = set()
        """Of the connections that speak HTTP, between requests or in one."""
        self.unused: set[HttpReader] = set()
        """Those of them that have had no request yet."""
        self._left_over = trio.Event()

    def _describe(self) -> None:
        self.capabilities = discovery.capabilities(self.limits.buffer_events)
        self.discovery = discovery.document(self.limits.buffer_events)

    def take_over(self, config: Config) -> None:
        """Go on with another configuration; limits of what one connection may do hold for those to come."""
        self.config = config
        self.limits = config.limits
        self.relay.change_limits(config.limits)
        self._describe()

    def admit(self) -> bool:
        """Count one more connection in, at once and not when its task first runs; False when there is no room."""
        if self.open_connections >= self.limits.max_connections:
            self.relay.stats.refused("max_connections")
            return False
        self.open_connections += 1
        return True

    async def end_idle(self, *, unused: bool = False) -> None:
        """End the kept-alive connections that are between two requests, and if ``unused``, those before the first.

        Who has just connected is about to send a request, and unlike others does not expect to find the end instead.
        """
        turn = Turn()
        for reader in list(self.readers):
            if reader.idle and (unused or reader not in self.unused):
                reader.expire()
            if turn.over:
                # There may be twenty thousand, and to wake each takes a while.
                await turn.pass_on()

    async def flush(self) -> None:
        """Hand what was ingested to the sockets, letting other tasks run between slices."""
        flush = self.relay.flush
        if not flush():
            return
        try:
            while True:
                await trio.lowlevel.checkpoint()
                if not flush():
                    return
        except BaseException:
            # The task that ingested is over in mid-flush; others are owed what it ingested.
            self._left_over.set()
            raise

    async def flush_left_over(self) -> None:
        """Finish flushes whose task was cancelled; runs as long as the relay."""
        while True:
            await self._left_over.wait()
            self._left_over = trio.Event()
            while self.relay.flush():
                await trio.lowlevel.checkpoint()
