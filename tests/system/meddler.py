"""A proxy that does everything wrong: it buffers, drops upgrade and headers, tells a wrong time, and may end TLS."""

from __future__ import annotations

import datetime
import re
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import trustme


@dataclass
class Meddling:
    """What the proxy does to what passes through it."""

    tls: ssl.SSLContext | None = None
    buffers: bool = False
    drops_upgrade: bool = False
    drops_version: bool = False
    date: str | None = None

    def request(self, head: bytes) -> bytes:
        """Return a request's head as it goes on."""
        if self.drops_upgrade:
            head = re.sub(rb"(?im)^(upgrade|connection|sec-websocket-[a-z]+):.*\r\n", b"", head)
        return (
            re.sub(rb"(?im)^aep-version:.*\r\n", b"AEP-Version: 0.1\r\n", head)
            if self.drops_version
            else head
        )

    def response(self, data: bytes) -> bytes:
        """Return a piece of a response as it goes on."""
        if self.date is None:
            return data
        return re.sub(rb"(?im)^date:.*\r\n", f"Date: {self.date}\r\n".encode(), data)


class Meddler:
    """The running proxy; every connection is one request."""

    def __init__(self, target_port: int, meddling: Meddling) -> None:
        self._target_port = target_port
        self._meddling = meddling
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        """Be done."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(20)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(near,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, near: socket.socket) -> None:
        with near, suppress(OSError, ssl.SSLError):
            secured = (
                near if self._meddling.tls is None else self._meddling.tls.wrap_socket(near, server_side=True)
            )
            with secured, socket.create_connection(("127.0.0.1", self._target_port)) as far:
                self._forward(secured, far)

    def _forward(self, near: socket.socket, far: socket.socket) -> None:
        sending = threading.Thread(target=self._send, args=(near, far))
        sending.start()
        held = b""
        with suppress(OSError, ssl.SSLError):
            while data := far.recv(65536):
                if self._meddling.buffers and b"text/event-stream" in data:
                    held = data
                    continue
                near.sendall(self._meddling.response(held + data))
                held = b""
            near.sendall(held)
        _shut(near)
        sending.join(20)

    def _send(self, near: socket.socket, far: socket.socket) -> None:
        with suppress(OSError, ssl.SSLError):
            while data := near.recv(65536):
                far.sendall(self._meddling.request(data))
        _shut(far)


def _shut(sock: socket.socket) -> None:
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


@contextmanager
def meddler(target_port: int, meddling: Meddling) -> Iterator[Meddler]:
    """Run the proxy."""
    found = Meddler(target_port, meddling)
    try:
        yield found
    finally:
        found.close()


def certified(folder: Path, days: int) -> ssl.SSLContext:
    """Return what serves 127.0.0.1 for so many days; its authority is ``folder / "ca.pem"``."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    not_after = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1", not_after=not_after).configure_cert(context)
    return context
