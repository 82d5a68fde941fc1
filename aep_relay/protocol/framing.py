"""The framings of one Event on its way out: WebSocket frame, SSE message, JSONL line.

Each is made once for an Event and a ceiling and shared by every consumer that receives it so. AEP-0003 §3.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from aep_relay.protocol import frames, sse
from aep_relay.protocol.jsonl import one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aep_relay.protocol.event import Event


class Framing(IntEnum):
    """How Events are framed for a consumer."""

    WEBSOCKET = 0
    SSE = 1
    """Each message one HTTP/1.1 chunk."""
    SSE_UNCHUNKED = 2
    """For HTTP/1.0, where the end of the connection ends the stream."""
    JSONL = 3


def encode_each(framing: Framing, events: Sequence[Event], raws: Sequence[bytes]) -> list[bytes]:
    """Return what ``encode`` returns for each of ``events`` with its one of ``raws``, for less."""
    if framing is Framing.WEBSOCKET:
        return [frames.text_frame(raw) for raw in raws]
    lines = [one_line(raw) for raw in raws]
    if framing is Framing.SSE:
        return [sse.chunk(sse.message(event, line)) for event, line in zip(events, lines, strict=True)]
    if framing is Framing.SSE_UNCHUNKED:
        return [sse.message(event, line) for event, line in zip(events, lines, strict=True)]
    return [line + b"\n" for line in lines]


def encode(framing: Framing, event: Event, raw: bytes) -> bytes:
    """Return ``raw``, the Event at the consumer's ceiling, framed."""
    if framing is Framing.WEBSOCKET:
        return frames.text_frame(raw)
    line = one_line(raw)
    if framing is Framing.SSE:
        return sse.chunk(sse.message(event, line))
    if framing is Framing.SSE_UNCHUNKED:
        return sse.message(event, line)
    return line + b"\n"
