"""Large Events, taken in in steps: to decode one of some MiB, to down-level it and to send it take 20 ms each.

Others have their turn in between. What it came by waits, so its Events stay in order. What has no steps of its own, as
the mapping from one dialect to the other, is done in a worker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import trio

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aep_relay.protocol.event import Event

T = TypeVar("T")

LARGE_BYTES: Final = 256 * 1024
"""What is shorter is done with in some milliseconds, all steps together."""


class Preparing(Protocol):
    """What down-levels an Event in steps, as the hub's fan-out does."""

    def prepare(self, event: Event) -> Iterator[None]:
        """Down-level ``event``; others have their turn at each step."""
        ...


async def prepare(fanout: Preparing, event: Event) -> None:
    """Down-level ``event``, which has just been decoded and is to be ingested next, for whoever will be sent it."""
    for _ in fanout.prepare(event):
        await trio.lowlevel.checkpoint()


async def aside(compute: Callable[[bytes], T], data: bytes) -> T:
    """Return what ``compute`` makes of ``data`` in a worker; raise what it raises. Others have their turn meanwhile."""
    return await trio.to_thread.run_sync(compute, data)
