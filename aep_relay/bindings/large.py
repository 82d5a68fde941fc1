"""Large Events, taken in in steps: to decode one of some MiB, to down-level it and to send it take 20 ms each.

Others have their turn in between. The connection it came by waits, so its Events stay in order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

if TYPE_CHECKING:
    from aep_relay.bindings.service import Service
    from aep_relay.protocol.event import Event

LARGE_BYTES: Final = 256 * 1024
"""What is shorter is done with in some milliseconds, all steps together."""


async def prepare(service: Service, event: Event) -> None:
    """Down-level ``event``, which has just been decoded and is to be ingested next, for whoever will be sent it."""
    for _ in service.relay.fanout.prepare(event):
        await trio.lowlevel.checkpoint()
