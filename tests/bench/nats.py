"""The first yardstick: nats-server fanning out messages of the same size to as many plain TCP subscribers.

Its runs and the relay's alternate, so that each is compared with one of the same few seconds.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
from collections.abc import Iterator

from . import machine, wire
from .load import Emitter
from .process import Server, free_port, serving

_CONNECT = b'CONNECT {"verbose":false,"pedantic":false}\r\n'
_SUBJECT = b"bench"


def binary() -> str | None:
    """The path of nats-server, or ``None`` where it is not installed."""
    return shutil.which("nats-server") or shutil.which("nats-server", path="/usr/sbin:/usr/local/bin")


def version() -> str | None:
    """What nats-server says its version is."""
    path = binary()
    if path is None:
        return None
    said = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
    return said.rpartition(":")[2].strip()


@contextlib.contextmanager
def broker(core: machine.Core) -> Iterator[Server | None]:
    """A nats-server on ``core`` for the block; ``None`` where it is not installed."""
    path = binary()
    if path is None:
        yield None
        return
    port = free_port()
    with serving([path, "-a", "127.0.0.1", "-p", str(port)], port, core) as server:
        yield server


def open_subscribers(server: Server, count: int) -> list[socket.socket]:
    """``count`` subscribers of the benchmark's one subject."""
    socks = [wire.connect(server.port) for _ in range(count)]
    for sock in socks:
        sock.sendall(_CONNECT + b"SUB " + _SUBJECT + b" 1\r\nPING\r\n")
    for sock in socks:
        wire.read_until(sock, lambda received: b"PONG\r\n" in received)
    return socks


def open_publisher(server: Server) -> Emitter:
    """A publisher; each request it sends is one of ``publications``, answered by a PONG."""
    return Emitter(open_publisher_socket(server), b"PONG\r\n", (b"-ERR",))


def open_publisher_socket(server: Server) -> socket.socket:
    """The bare connection of a publisher, past CONNECT."""
    sock = wire.connect(server.port)
    sock.sendall(_CONNECT + b"PING\r\n")
    wire.read_until(sock, lambda received: b"PONG\r\n" in received)
    return sock


def publication(message: bytes) -> bytes:
    """One published message."""
    return b"PUB %s %d\r\n%s\r\n" % (_SUBJECT, len(message), message)


def publications(batch: list[bytes]) -> bytes:
    """A batch in one write, with the PING whose PONG says that the server has processed all of it."""
    return b"".join(map(publication, batch)) + b"PING\r\n"


def delivery_bytes(message: bytes) -> int:
    """The bytes a subscriber receives for one message."""
    return len(b"MSG %s 1 %d\r\n%s\r\n" % (_SUBJECT, len(message), message))
