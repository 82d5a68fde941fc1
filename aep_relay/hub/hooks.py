"""What may listen in on the relay: archives and chained relays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aep_relay.hub.peer import Peer
    from aep_relay.protocol.event import Event


class Tap(Protocol):
    """Who is told of every Event taken in."""

    def accepted(self, events: Sequence[Event], peer: Peer | None) -> None:
        """Note ``events``, which came from ``peer`` or, a command, went to it. Must neither wait nor fail.

        More than one at a time are of one session, each with a position.
        """


class Uplink(Protocol):
    """A chained relay that may know a way."""

    def forward(self, event: Event, sender: Peer) -> bool:
        """Pass a command on whose session nobody here claims; False if this is not the way."""
