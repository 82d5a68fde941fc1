"""Whatever happens on the operator plane of an installed relay, its data plane delivers and its end comes in time."""

from __future__ import annotations

import json
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from urllib.request import Request, urlopen

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection

from aep_relay.ops.server import WRITE_TIMEOUT_SECONDS
from tests import patient
from tests.installed import installed
from tests.ports import free_port
from tests.system.agents import post
from tests.system.operated import TOKEN, Operated, operated

BATCHES = 40
BATCH_EVENTS = 50
PATIENCE_SECONDS = 20.0
UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\nx"
)


def progress(number: int) -> bytes:
    return json.dumps(
        {
            "aep": "0.1",
            "id": f"e{number}",
            "type": "progress.status",
            "time": "2026-07-03T10:15:05.000Z",
            "source": "aep://host/s",
            "agent": "worker",
            "session": "s",
            "seq": number,
            "severity": "notice",
        }
    ).encode()


@contextmanager
def consumer(relay: Operated) -> Iterator[ClientConnection]:
    """A consumer of everything."""
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with patient.connect(f"ws://127.0.0.1:{relay.port}/socket", additional_headers=headers) as socket_:
        socket_.send(
            json.dumps({"type": "hello", "versions": ["0.1"], "role": "consumer", "capabilities": {}})
        )
        socket_.send(json.dumps({"type": "subscribe", "id": "all", "filter": {}}))
        while json.loads(socket_.recv(PATIENCE_SECONDS))["type"] != "subscribed":
            pass
        yield socket_


def receive(socket_: ClientConnection, count: int) -> list[int]:
    """The positions of the next ``count`` Events."""
    found: list[int] = []
    while len(found) < count:
        frame = json.loads(socket_.recv(PATIENCE_SECONDS))
        if "." in frame["type"]:
            found.append(frame["seq"])
    return found


def stall(ops_port: int) -> socket.socket:
    """Ask for much, over and over, and read none of it."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.settimeout(0.5)
    sock.connect(("127.0.0.1", ops_port))
    request = (
        b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + TOKEN.encode() + b"\r\n\r\n"
    )
    with suppress(TimeoutError, OSError):
        for _ in range(2000):
            sock.sendall(request)
    return sock


def get(ops_port: int, path: str) -> bytes:
    request = Request(f"http://127.0.0.1:{ops_port}{path}", headers={"Authorization": f"Bearer {TOKEN}"})
    with urlopen(request, timeout=PATIENCE_SECONDS) as answer:  # noqa: S310
        found: bytes = answer.read()
        return found


def attack(ops_port: int, stop: threading.Event, stalled: list[socket.socket]) -> None:
    """Do to the operator plane what has ended or stalled servers like it."""
    stalled += [stall(ops_port) for _ in range(4)]
    while not stop.is_set():
        for payload in (UPGRADE, b"\x00" * 5000, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 100):
            with suppress(OSError), socket.create_connection(("127.0.0.1", ops_port), timeout=1) as sock:
                sock.sendall(payload)
                sock.recv(100)


def test_an_operator_plane_under_attack_costs_no_delivery(tmp_path: Path) -> None:
    stalled: list[socket.socket] = []
    stop = threading.Event()
    with operated(tmp_path) as relay, consumer(relay) as socket_:
        attacker = threading.Thread(target=attack, args=(relay.ops_port, stop, stalled))
        attacker.start()
        try:
            for batch in range(BATCHES):
                first = batch * BATCH_EVENTS
                post(relay.port, TOKEN, [progress(n) for n in range(first, first + BATCH_EVENTS)])
                assert receive(socket_, BATCH_EVENTS) == list(range(first, first + BATCH_EVENTS))
        finally:
            stop.set()
            attacker.join()
        # It also got over it.
        assert json.loads(get(relay.ops_port, "/health/live")) == {"live": True}
        assert b"aep_relay_events_received_total 2000.0" in get(relay.ops_port, "/metrics")
        for sock in stalled:
            sock.close()


def test_the_daemon_ends_in_time_with_readers_that_stall(tmp_path: Path) -> None:
    with operated(tmp_path) as relay:
        stalled = [stall(relay.ops_port) for _ in range(4)]
        began = time.monotonic()
        assert relay.relay.end(signal.SIGTERM) == 0
        assert time.monotonic() - began < WRITE_TIMEOUT_SECONDS
        for sock in stalled:
            sock.close()


def test_a_restart_finds_its_bind_free(tmp_path: Path) -> None:
    """Nobody passes this socket on, and clients of the process before do not hold its address."""
    ops_port = free_port()
    config = f"[operator]\nport = {ops_port}\n"
    with ExitStack() as stack:
        for _ in range(2):
            with installed(tmp_path, config) as relay:
                relay.record("operator plane listening")
                client = stack.enter_context(socket.create_connection(("127.0.0.1", ops_port)))
                client.sendall(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert client.recv(100).startswith(b"HTTP/1.1 200 ")
                assert relay.end(signal.SIGTERM) == 0
                assert "cannot listen" not in "".join(relay.lines)


def test_a_taken_bind_costs_the_operator_plane_alone(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ops_port = taken.getsockname()[1]
        config = f'[auth]\ntoken = "{TOKEN}"\n[operator]\nport = {ops_port}\n'
        with installed(tmp_path, config) as relay:
            port = relay.port()
            assert relay.record("operator plane cannot listen; the relay goes on without it")
            found = Operated(relay, port, ops_port, TOKEN)
            with consumer(found) as socket_:
                post(port, TOKEN, [progress(1)])
                assert receive(socket_, 1) == [1]
                taken.close()
                relay.record("operator plane listening")
                assert json.loads(get(ops_port, "/health/ready"))["ready"] is True
                assert relay.end(signal.SIGTERM) == 0
                with suppress(ConnectionClosed):
                    while True:
                        socket_.recv(PATIENCE_SECONDS)
