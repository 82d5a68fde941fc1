"""The second yardstick: what bare Python pays for the same bytes, with no relay in between.

A loop joins the framed Events and sends them to each socket, in a process of its own
(``python -m ...floor PORT``), so that it is measured as the relay is.
"""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

from . import machine, wire
from .load import Emitter
from .process import Server, free_port, serving

_CONTROL, _CONSUMER = b"C", b"D"
_ORDER = "{events:>8}{size:>8}"
_ORDER_BYTES = 16
_DONE = b"done"


@contextlib.contextmanager
def sender(core: machine.Core) -> Iterator[Server]:
    """The bare loop on ``core`` for the block, waiting for connections."""
    port = free_port()
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "tests.bench.floor", str(port)]
    with serving(command, port, core, environment={"PYTHONPATH": str(root)}) as server:
        yield server


def open_consumers(server: Server, count: int) -> list[socket.socket]:
    """``count`` connections the loop sends to."""
    socks = [wire.connect(server.port) for _ in range(count)]
    for sock in socks:
        sock.sendall(_CONSUMER)
    return socks


def open_control(server: Server) -> Emitter:
    """The connection on which ``order`` is sent; open the consumers first."""
    sock = wire.connect(server.port)
    sock.sendall(_CONTROL)
    return Emitter(sock, _DONE)


def order(events: int, event_bytes: int) -> bytes:
    """Ask for one batch to all consumers."""
    return _ORDER.format(events=events, size=event_bytes).encode()


def _serve(port: int) -> None:
    consumers: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", port), backlog=1024) as listener:
        while True:
            sock, _ = listener.accept()
            role = sock.recv(1)
            if role == _CONSUMER:
                consumers.append(sock)
            elif role == _CONTROL:
                _obey(sock, consumers)
                return


def _obey(control: socket.socket, consumers: list[socket.socket]) -> None:
    while request := control.recv(_ORDER_BYTES, socket.MSG_WAITALL):
        events, size = int(request[:8]), int(request[8:])
        frames = [b"x" * size] * events
        for sock in consumers:
            sock.sendall(b"".join(frames))
        control.sendall(_DONE)


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
