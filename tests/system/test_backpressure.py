"""Slow and stalled consumers of the installed daemon, over real sockets."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.uri import parse_uri

from tests.system.running import PATIENCE_SECONDS, Message, Running, items

if TYPE_CHECKING:
    from tests.system.conftest import Run

LIMITS = """
[limits]
soft_limit_bytes = 65_536
hard_limit_bytes = 262_144
max_event_bytes = 65_536
closing_timeout_seconds = """
SIZE_BYTES = 20_000


def event(seq: int, severity: str) -> bytes:
    """Return an Event of about ``SIZE_BYTES``."""
    found = {
        "aep": "0.1",
        "id": f"e-{seq}",
        "type": "progress.status",
        "time": "2026-07-03T10:14:00Z",
        "source": "aep://host/agent/worker",
        "agent": "worker",
        "session": "s",
        "seq": seq,
        "severity": severity,
        "data": {"message": "x" * SIZE_BYTES},
    }
    return json.dumps(found).encode()


def flood(relay: Running, severity: str, count: int) -> None:
    """Send far more than all sockets on the way take."""
    for first in range(0, count, 50):
        relay.post(*(event(seq, severity) for seq in range(first, min(count, first + 50))))


class Lazy:
    """A consumer with a small window, which reads only when it is told to."""

    def __init__(self, relay: Running) -> None:
        self.sock = socket.socket()
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.sock.settimeout(PATIENCE_SECONDS)
        self.sock.connect(("127.0.0.1", relay.port))

    def read_all(self) -> bytes:
        """Return all that comes until the relay ends the connection."""
        found = bytearray()
        while data := self.sock.recv(1 << 20):
            found += data
        return bytes(found)


@contextmanager
def stream(relay: Running) -> Iterator[Lazy]:
    lazy = Lazy(relay)
    with lazy.sock:
        lazy.sock.sendall(b"GET /stream HTTP/1.0\r\n\r\n")
        _until_subscribed(relay)
        yield lazy


@contextmanager
def websocket(relay: Running) -> Iterator[tuple[Lazy, ClientProtocol]]:
    protocol = ClientProtocol(parse_uri(f"ws://127.0.0.1:{relay.port}/socket"), max_size=None)
    lazy = Lazy(relay)

    def send() -> None:
        for data in protocol.data_to_send():
            lazy.sock.sendall(data)

    with lazy.sock:
        protocol.send_request(protocol.connect())
        send()
        while protocol.state.name != "OPEN":
            protocol.receive_data(lazy.sock.recv(4096))
        protocol.events_received()
        hello = {"type": "hello", "versions": ["0.1"], "role": "consumer"}
        for message in (hello, {"type": "subscribe", "id": "a", "filter": {"session": "s"}}):
            protocol.send_text(json.dumps(message).encode())
        send()
        _until_subscribed(relay)
        told = b""
        while b'"subscribed"' not in told:
            told += lazy.sock.recv(4096)
        protocol.receive_data(told)
        protocol.events_received()
        yield lazy, protocol


def _until_subscribed(relay: Running) -> None:
    while relay.get("/healthz")["subscribers"] == 0:
        time.sleep(0.01)


def _until_gone(relay: Running) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while relay.get("/connections")["connections"]:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def texts(protocol: ClientProtocol, data: bytes) -> list[dict[str, Any]]:
    """Return the messages that ``data`` holds, all of them whole."""
    protocol.receive_data(data)
    frames = [frame for frame in protocol.events_received() if isinstance(frame, Frame)]
    assert protocol.parser_exc is None
    return [json.loads(bytes(frame.data)) for frame in frames if frame.opcode is Opcode.TEXT]


def test_a_slow_stream_ends_behind_a_whole_message_and_resumes_exactly(run: Run) -> None:
    with run(LIMITS + "30") as relay, stream(relay) as lazy:
        flood(relay, "notice", 400)
        body = lazy.read_all().partition(b"\r\n\r\n")[2]
        *found, last = items(body)
        assert last == "closing slow-consumer"
        messages = [item for item in found if isinstance(item, Message)]
        seqs = [json.loads(message.data)["seq"] for message in messages]
        assert seqs == list(range(len(seqs)))
        assert len(seqs) < 400
        resumed = relay.curl("-H", f"Last-Event-ID: {messages[-1].id}", live="0")
        rest = [json.loads(item.data)["seq"] for item in items(resumed) if isinstance(item, Message)]
        assert seqs + rest == list(range(400))


def test_a_slow_socket_is_told_its_positions_and_closed(run: Run) -> None:
    with run(LIMITS + "30") as relay, websocket(relay) as (lazy, protocol):
        flood(relay, "notice", 400)
        *events, closing = texts(protocol, lazy.read_all())
        assert protocol.close_rcvd is not None
        assert protocol.close_rcvd.code == 1013
        seqs = [found["seq"] for found in events]
        assert seqs == list(range(len(seqs)))
        assert closing == {
            "type": "closing",
            "reason": "slow-consumer",
            "delivered": [{"sub": "a", "session": "s", "epoch": 0, "seq": len(seqs) - 1}],
        }


@pytest.mark.parametrize("kind", [stream, websocket])
def test_a_peer_that_never_reads_is_aborted(kind: Any, run: Run) -> None:
    with run(LIMITS + "1") as relay, kind(relay) as opened:
        lazy = opened if isinstance(opened, Lazy) else opened[0]
        flood(relay, "notice", 400)
        _until_gone(relay)
        closed = relay.relay.record("connection closed")
        assert closed["reason"] == "slow-consumer"
        with pytest.raises(ConnectionResetError):
            lazy.read_all()


@pytest.mark.parametrize("kind", [stream, websocket])
def test_info_alone_ends_nobody_and_is_counted(kind: Any, run: Run) -> None:
    with run(LIMITS + "1") as relay, kind(relay):
        flood(relay, "info", 400)
        (found,) = relay.get("/connections")["connections"]
        assert found["dropped_events"] > 0
        assert found["dropped_events"] + found["delivered_events"] == 400
        assert found["queued_bytes"] < 65_536 + 2 * SIZE_BYTES


def test_others_do_not_notice_a_stalled_consumer(run: Run) -> None:
    with run(LIMITS + "60") as relay, stream(relay):
        flood(relay, "notice", 100)
        # Whoever waited for it would wait for longer than a client does for an answer.
        for seq in range(100, 150):
            relay.post(event(seq, "notice"))
