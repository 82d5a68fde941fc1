"""``--relay`` of ``stdio`` and ``run``: an embedded relay without a network, bridged to a running one.

What the near side emits is sent until the far relay has handled it, with the near side's hello, so that the far relay
claims its sessions and gates its commands; what comes from there is ingested here, commands at the one peer they are
for. Invariants: nothing goes back to where it came from; what waits is bounded: ``stdio`` waits for it, ``run`` gives
up ``debug`` and ``info`` first and counts what it lost (AEP-0003 §8.4).
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Final, Protocol

import structlog
import trio

from aep_relay.cli.support import exits
from aep_relay.client.backoff import STABLE_SECONDS, Backoff
from aep_relay.client.errors import ClientError, TimedOut, Unreachable
from aep_relay.client.socket import open_socket
from aep_relay.daemon import Companion
from aep_relay.protocol.event import Event, Shape
from aep_relay.protocol.registry import SEVERITY_RANK

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aep_relay.bindings.service import Service
    from aep_relay.client.socket import Frame, Socket
    from aep_relay.client.target import Target
    from aep_relay.hub.peer import Peer

BATCH_EVENTS: Final = 256
BATCH_BYTES: Final = 256 * 1024
WAITING_BYTES: Final = 1024 * 1024
"""With more than this on its way, ``stdio`` reads no further."""
MAX_WAITING_BYTES: Final = 16 * 1024 * 1024
EVENT_COST_BYTES: Final = 300
REMEMBERED_EVENTS: Final = 10_000
SETTLE_SECONDS: Final = 10.0

_NOTICE = SEVERITY_RANK["notice"]

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class Inner(Companion, Protocol):
    """What can be bridged."""

    def fail(self, problem: str) -> None:
        """End in order, because the relay that it is for can't be used."""


class Bridge:
    """Joins the peers of one binding to a relay elsewhere; a ``Tap`` and a ``Companion`` around another one."""

    def __init__(
        self,
        inner: Inner,
        target: Target,
        *,
        agent: str,
        accepts: Sequence[str],
        subscribe: Frame | None,
        from_: object = None,
        capture: str | None = None,
        lasting: bool,
    ) -> None:
        self._inner = inner
        self._target = target
        self._agent = agent
        self._accepts = list(accepts)
        self._subscribe = subscribe
        self._from = from_
        self._capture = capture
        self._lasting = lasting
        """Whether to connect again when the connection is lost."""
        self._waiting: deque[Event] = deque()
        self._waiting_bytes = 0
        self._sending: list[Event] = []
        self._sent: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._last: dict[str, Event] = {}
        self._more = trio.Event()
        self._moved = trio.Event()
        self._from_there: tuple[str, str] | None = None
        self._failures: list[ClientError] = []
        self.lost_events = 0

    # daemon.Companion

    def signalled(self, number: int) -> None:
        """Pass it on."""
        self._inner.signalled(number)

    async def run(self, service: Service) -> int:
        """Run what is bridged; return its exit code, or that of an unreachable relay."""
        service.relay.taps.append(self)
        failures = self._failures
        async with trio.open_nursery() as nursery:

            async def link() -> None:
                try:
                    await self._link(service)
                except ClientError as error:
                    log.error("relay cannot be used", relay=self._target.url, detail=error.message)
                    failures.append(error)
                    self._moved.set()
                    self._inner.fail(error.message)

            nursery.start_soon(link)
            code = await self._inner.run(service)
            if not failures:
                with trio.move_on_after(SETTLE_SECONDS):
                    await self.below(0)
            nursery.cancel_scope.cancel()
        lost = self.lost_events + len(self._waiting) + len(self._sending)
        if lost:
            log.error("not all was delivered", relay=self._target.url, lost_events=lost)
        if failures:
            return exits.code_of(failures[0])
        return code if self._lasting or not lost else exits.UNREACHABLE

    async def below(self, size_bytes: int = WAITING_BYTES) -> None:
        """Wait until no more than ``size_bytes`` are on their way."""
        while self._waiting_bytes > size_bytes and not self._failures:
            self._moved = trio.Event()
            await self._moved.wait()

    # hub.hooks.Tap

    def accepted(self, events: Sequence[Event], peer: Peer | None) -> None:
        """Send what a peer of this side has emitted; what came from there stays here."""
        for event in events:
            self._accepted(event)

    def _accepted(self, event: Event) -> None:
        if event.key == self._from_there or event.shape is Shape.COMMAND:
            return
        if self._lasting and self._waiting_bytes >= MAX_WAITING_BYTES:
            self._make_room()
        self._waiting.append(event)
        self._waiting_bytes += _cost(event)
        if event.shape is Shape.SESSION and event.session is not None:
            self._last.pop(event.session, None)
            if event.type != "session.ended":
                self._last[event.session] = event
            if len(self._last) > REMEMBERED_EVENTS:
                del self._last[next(iter(self._last))]
        self._more.set()

    def _make_room(self) -> None:
        kept = deque(event for event in self._waiting if event.severity >= _NOTICE)
        kept_bytes = sum(map(_cost, kept))
        while kept_bytes > MAX_WAITING_BYTES // 2:
            kept_bytes -= _cost(kept.popleft())
        self.lost_events += len(self._waiting) - len(kept)
        self._waiting = kept
        self._waiting_bytes = kept_bytes + sum(map(_cost, self._sending))

    async def _link(self, service: Service) -> None:
        backoff = Backoff()
        while True:
            began = trio.current_time()
            control: Frame = {"accepts": self._accepts}
            try:
                async with open_socket(
                    self._target, role="both", agent=self._agent, capabilities={"control": control}
                ) as socket:
                    await self._serve(service, socket)
            except (Unreachable, TimedOut) as error:
                if not self._lasting:
                    raise
                problem = error.message
            if trio.current_time() - began >= STABLE_SECONDS:
                backoff.succeeded()
            self._waiting.extendleft(reversed(self._sending))
            self._sending = []
            wait_seconds = backoff.next_seconds()
            log.warning(
                "connection lost", relay=self._target.url, detail=problem, wait_seconds=round(wait_seconds, 1)
            )
            await trio.sleep(wait_seconds)

    async def _serve(self, service: Service, socket: Socket) -> None:
        if self._subscribe is not None:
            await socket.subscribe(self._subscribe, self._from, self._capture)
        log.info("connected", relay=self._target.url)
        # A claim ends with its connection: an Event that was sent before renews it, and is no news to anybody.
        for event in list(self._last.values()):
            if event.key in self._sent:
                await socket.say(event.raw)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._receive, service, socket)
            while True:
                while self._waiting:
                    await self._send(socket)
                self._more = trio.Event()
                await self._more.wait()

    async def _send(self, socket: Socket) -> None:
        size = 0
        while self._waiting and len(self._sending) < BATCH_EVENTS and size < BATCH_BYTES:
            event = self._waiting.popleft()
            self._sending.append(event)
            size += len(event.raw)
            self._sent[event.key] = None
            if len(self._sent) > REMEMBERED_EVENTS:
                self._sent.popitem(last=False)
        for event in self._sending:
            await socket.say(event.raw)
        await socket.fence()
        self._waiting_bytes -= sum(map(_cost, self._sending))
        self._sending = []
        self._moved.set()

    async def _receive(self, service: Service, socket: Socket) -> None:
        while True:
            item = await socket.receive()
            if isinstance(item, Event):
                self._take(service, item)
                await service.flush()
            elif item.get("type") == "error":
                log.warning(
                    "relay refused", code=item.get("code"), detail=item.get("detail"), cause=item.get("cause")
                )

    def _take(self, service: Service, event: Event) -> None:
        relay = service.relay
        if event.key in self._sent:
            return
        self._from_there = event.key
        if event.shape is Shape.COMMAND:
            # Whether it may be sent has been decided where it comes from, by what this side accepts.
            claimants = relay.claims.of(event.session or "")
            if len(claimants) == 1 and event.type in (claimants[0].accepts or ()):
                relay.deliver(event, claimants[0])
            else:
                relay.take_over(event, None)
        else:
            relay.ingest(event)
        self._from_there = None


def _cost(event: Event) -> int:
    return len(event.raw) + EVENT_COST_BYTES
