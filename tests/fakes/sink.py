"""A sink in memory: what a consumer's socket took, how much more it takes, and what the bytes say."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any, cast

from aep_relay.hub.outbox import BROKEN
from aep_relay.protocol.framing import Framing

if TYPE_CHECKING:
    from aep_relay.hub.peer import Peer


class MemorySink:
    """Behaves like a binding's ``Sink``; ``capacity_bytes`` is how much more is taken, None for any number."""

    def __init__(self, capacity_bytes: int | None = None) -> None:
        self.capacity_bytes = capacity_bytes
        self.taken = bytearray()
        """All bytes taken, in order."""
        self.broken = False
        """Whether the consumer is gone."""
        self.sends = 0
        self.wakes = 0
        self.closed: tuple[str, int] | None = None
        self.aborted: str | None = None

    def send(self, data: bytes | memoryview) -> int:
        if self.broken:
            return BROKEN
        self.sends += 1
        count = len(data) if self.capacity_bytes is None else min(len(data), self.capacity_bytes)
        self.taken += data[:count]
        if self.capacity_bytes is not None:
            self.capacity_bytes -= count
        return count

    def wake(self) -> None:
        self.wakes += 1

    def close(self, reason: str, code: int) -> None:
        assert self.closed is None, "closed twice"
        self.closed = (reason, code)

    def abort(self, reason: str) -> None:
        self.aborted = reason


def split(framing: Framing, data: bytes) -> tuple[list[bytes], bytes]:
    """Cut ``data`` into whole frames, headers included, and what is left; fails where no frame can begin."""
    frames: list[bytes] = []
    while True:
        size = _frame_bytes(framing, data)
        if size is None or size > len(data):
            return frames, data
        frames.append(data[:size])
        data = data[size:]


def _frame_bytes(framing: Framing, data: bytes) -> int | None:
    """Return how long the frame is that ``data`` begins with, None if that cannot be told yet."""
    if framing is Framing.WEBSOCKET:
        return _websocket_frame_bytes(data)
    if framing is Framing.SSE:
        head, found, _ = data.partition(b"\r\n")
        return len(head) + 4 + int(head, 16) if found else None
    end = data.find(b"\n\n" if framing is Framing.SSE_UNCHUNKED else b"\n")
    return None if end < 0 else end + (2 if framing is Framing.SSE_UNCHUNKED else 1)


def _websocket_frame_bytes(data: bytes) -> int | None:
    if len(data) < 2:
        return None
    assert data[0] == 0x81, f"no whole text frame begins with {data[:8]!r}"
    assert data[1] < 128, "a server's frame is not masked"
    if data[1] < 126:
        return 2 + data[1]
    size = 2 if data[1] == 126 else 8
    if len(data) < 2 + size:
        return None
    (length,) = struct.unpack("!H" if size == 2 else "!Q", data[2 : 2 + size])
    return 2 + size + cast("int", length)


def text(framing: Framing, frame: bytes) -> bytes:
    """Return what a whole frame carries: JSON, or an SSE comment with its colon."""
    if framing is Framing.WEBSOCKET:
        return frame[2 if frame[1] < 126 else 4 if frame[1] == 126 else 10 :]
    if framing is Framing.SSE:
        frame = frame.partition(b"\r\n")[2].removesuffix(b"\r\n")
    if framing is Framing.JSONL or frame.startswith(b":"):
        return frame.rstrip(b"\n")
    lines = frame.removesuffix(b"\n\n").split(b"\n")
    (data,) = [line for line in lines if line.startswith(b"data: ")]
    return data.removeprefix(b"data: ")


def texts(framing: Framing, data: bytes) -> list[bytes]:
    """Return what each frame of ``data`` carries; ``data`` ends with a whole one."""
    frames, rest = split(framing, data)
    assert rest == b"", f"cut in mid-frame: {rest[:80]!r}"
    return [text(framing, frame) for frame in frames]


def received(peer: Peer) -> list[bytes]:
    """Return the text of all frames that the sink of ``peer`` took."""
    return texts(peer.framing, bytes(cast("MemorySink", peer.sink).taken))


def ids(peer: Peer) -> list[str]:
    """Return the ``id`` of each Event that ``peer`` was sent, in order."""
    found = [json.loads(line) for line in received(peer) if line.startswith(b"{")]
    return [item["id"] for item in found if "." in item["type"]]


def frames_of(peer: Peer, type_: str) -> list[dict[str, Any]]:
    """Return each frame of ``type_`` that ``peer`` was sent over WebSocket."""
    return [frame for frame in map(json.loads, received(peer)) if frame["type"] == type_]
