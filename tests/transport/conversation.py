"""Scripting one HTTP connection: bytes in, requests or refusals out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import trio

from aep_relay.transport.deadlines import Deadlines
from aep_relay.transport.http import BodyTooLarge, HttpReader, HttpRefusal
from tests.fakes.wire import MemoryWire


@dataclass(frozen=True)
class Limits:
    """Limits small enough to run into."""

    max_head_bytes: int = 2048
    head_timeout_seconds: float = 10
    body_timeout_seconds: float = 60
    idle_timeout_seconds: float = 75


LIMITS = Limits()
MAX_BODY_BYTES = 1000

Outcome = tuple[str, ...] | tuple[str, int] | tuple[str, str, bytes]
"""``("request", "METHOD /path", body)``, ``("refused", status)`` or ``("end",)``."""


@asynccontextmanager
async def sweeping() -> AsyncIterator[Deadlines]:
    deadlines = Deadlines()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(deadlines.run)
        yield deadlines
        nursery.cancel_scope.cancel()


async def outcomes(chunks: Iterable[bytes], limits: Limits = LIMITS) -> list[Outcome]:
    """What a reader makes of a connection on which ``chunks`` and then the end arrive."""
    wire = MemoryWire(chunks)
    wire.feed_end()
    reader = HttpReader(wire, limits, Deadlines())
    seen: list[Outcome] = []
    try:
        while (request := await reader.next_request()) is not None:
            try:
                body = await reader.read_body(MAX_BODY_BYTES)
            except BodyTooLarge as refusal:
                seen.append(("refused", refusal.http_status))
            else:
                seen.append(("request", f"{request.method} {request.path}", body))
        seen.append(("end",))
    except HttpRefusal as refusal:
        assert not reader.keep_alive
        seen.append(("refused", refusal.http_status))
    await reader.close()
    assert wire.closed
    return seen


def cuts(data: bytes, at: Sequence[int]) -> list[bytes]:
    """``data`` cut at the positions ``at``."""
    ends = sorted({position for position in at if 0 < position < len(data)})
    return [data[start:end] for start, end in zip([0, *ends], [*ends, len(data)], strict=True)]


def bytewise(data: bytes) -> list[bytes]:
    return [data[index : index + 1] for index in range(len(data))]
