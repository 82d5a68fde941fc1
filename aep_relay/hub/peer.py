"""One connection as the hub sees it.

Owns what the relay knows of the connection: role, identity, subscriptions, claims and outbox. The binding supplies a
``Sink``: the hub decides, the binding moves bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from aep_relay.hub.outbox import BROKEN, Outbox

if TYPE_CHECKING:
    from aep_relay.hub.cohort import Cohort
    from aep_relay.hub.outbox import Batch
    from aep_relay.hub.policy import Grants
    from aep_relay.hub.subscriptions import Subscription
    from aep_relay.protocol.framing import Framing


GONE: Final = "gone"
"""Why a connection ends whose socket is broken: nothing can be sent, though what it sent before may yet be read."""


class Sink(Protocol):
    """What a binding does for the hub; every method is synchronous."""

    def send(self, data: bytes | memoryview) -> int:
        """Hand ``data`` to the socket; return the bytes taken, 0 if it would block, ``BROKEN`` if it is gone."""

    def wake(self) -> None:
        """See to it that ``Relay.drain_peer`` is called when the socket takes bytes again."""

    def close(self, reason: str, code: int) -> None:
        """End the connection once the outbox is empty; nothing but the binding's own farewell follows."""

    def abort(self, reason: str) -> None:
        """End the connection at once."""


class _Nowhere:
    """The sink of a connection that is over."""

    def send(self, data: bytes | memoryview) -> int:
        return BROKEN

    def wake(self) -> None:
        """Nothing can be written any more."""

    def close(self, reason: str, code: int) -> None:
        """It is closed."""

    def abort(self, reason: str) -> None:
        """It is over."""


NOWHERE: Sink = _Nowhere()
"""In place of a binding's own sink when that is gone, so that peer and sink don't keep each other alive."""


class Owner(Protocol):
    """What a peer needs of the relay."""

    def overflowed(self, peer: Peer) -> None:
        """End a connection that exceeded its hard limit."""

    def fell_behind(self, peer: Peer) -> None:
        """Note that a connection has bytes pending."""


class Peer:
    """A live connection."""

    __slots__ = (
        "accepts",
        "agent",
        "binding",
        "capabilities",
        "card",
        "claim_bytes",
        "claims",
        "closing",
        "cohort",
        "control",
        "declared_bytes",
        "delivered_events",
        "emits",
        "framing",
        "grants",
        "greeted",
        "id",
        "identity",
        "instance",
        "name",
        "outbox",
        "owner",
        "patient",
        "predicates",
        "progress",
        "received_events",
        "role",
        "seen",
        "sink",
        "subscriptions",
    )

    def __init__(
        self, id_: int, binding: str, framing: Framing, sink: Sink, owner: Owner, outbox: Outbox
    ) -> None:
        self.id = id_
        self.binding = binding
        self.framing = framing
        self.sink = sink
        self.owner = owner
        self.outbox = outbox
        self.name = ""
        """The remote end, for logs and listings."""
        self.greeted = True
        """Whether frames may be sent: on WebSocket nothing comes before hello (AEP-0003 §3.5.1)."""
        self.role = "consumer"
        self.grants: Grants | None = None
        self.identity: dict[str, object] | None = None
        """As declared in its hello; None where the binding has none."""
        self.card: dict[str, object] | None = None
        """What the check of its identity card found; None where none is checked."""
        self.capabilities: dict[str, object] = {}
        """As declared in its hello."""
        self.agent: str | None = None
        self.instance: object = None
        self.control: object = None
        """``capabilities.control`` verbatim, None when it was not declared."""
        self.emits: object = None
        self.accepts: frozenset[str] | None = None
        self.subscriptions: dict[str, Subscription] = {}
        self.predicates = 0
        """Of the filters of its live subscriptions."""
        self.claims: set[str] | None = None
        self.declared_bytes = 0
        """What each of its claims repeats of its hello in a roster."""
        self.claim_bytes = 0
        """What all its claims add to a roster."""
        self.cohort: Cohort | None = None
        self.seen = 0
        self.closing: str | None = None
        """Why it is being ended, None as long as it is not."""
        self.received_events = 0
        self.delivered_events = 0
        self.patient = False
        """Whether a standstill is no sign that it is gone: whoever reads a pipe may be busy for hours."""
        self.progress: tuple[int, float] | None = None
        """Bytes sent and since when no more were taken, while bytes are pending."""

    @property
    def replaying(self) -> bool:
        """Whether a subscription of it is still behind."""
        return any(subscription.replay is not None for subscription in self.subscriptions.values())

    def take(self, batch: Batch) -> bool:
        """Send ``batch`` or queue it; False when the connection is over."""
        if self.closing is not None:
            return False
        outbox = self.outbox
        if outbox.queue is None:
            sent = self.sink.send(batch.joined())
            if sent == BROKEN:
                self.closing = GONE
                return False
            outbox.sent_bytes += sent
            self.delivered_events += batch.events
            if sent == batch.size_bytes:
                return True
            outbox.partly_sent(batch, sent)
            self.owner.fell_behind(self)
            self.sink.wake()
            return True
        dropped_events = outbox.dropped_events
        if outbox.offer(batch):
            self.delivered_events += batch.events - (outbox.dropped_events - dropped_events)
            return True
        outbox.force(batch)
        self.owner.overflowed(self)
        return False

    def push(self, frame: bytes) -> bool:
        """Send one whole frame of its own behind everything before it; False when the connection is over."""
        if self.cohort is not None:
            self.cohort.settle(self)
        if self.closing is not None:
            return False
        outbox = self.outbox
        if outbox.queue is None:
            sent = self.sink.send(frame)
            if sent == BROKEN:
                self.closing = GONE
                return False
            outbox.sent_bytes += sent
            if sent == len(frame):
                return True
            outbox.partly_sent(frame, sent)
            self.owner.fell_behind(self)
            self.sink.wake()
            return True
        if outbox.push(frame):
            return True
        self.owner.overflowed(self)
        return False
