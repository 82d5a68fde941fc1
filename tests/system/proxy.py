"""A TCP proxy that can be cut or stopped: what stands between the two ends when a network fails."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Proxy:
    """Forwards every connection to ``target_port`` of this machine, unless it is cut."""

    def __init__(self) -> None:
        self.target_port = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._open = True
        self._passes = threading.Event()
        self._passes.set()
        self._ends: set[socket.socket] = set()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def cut(self) -> None:
        """End every connection, and every new one at once."""
        self._open = False
        for end in list(self._ends):
            _shut(end)

    def stop(self) -> None:
        """Let nothing pass any more, in either direction, and tell nobody; connections are made and stand still."""
        self._passes.clear()

    def mend(self) -> None:
        """Forward again."""
        self._open = True
        self._passes.set()

    def close(self) -> None:
        """Be done."""
        self.cut()
        self._passes.set()
        _shut(self._listener)
        for thread in self._threads:
            thread.join()
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
        with near:
            if not self._open:
                return
            with socket.create_connection(("127.0.0.1", self.target_port)) as far:
                self._ends |= {near, far}
                back = threading.Thread(target=self._forward, args=(far, near))
                back.start()
                self._forward(near, far)
                back.join()
                self._ends -= {near, far}

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                self._passes.wait()
                sink.sendall(data)
        self._passes.wait()
        _shut(source)
        _shut(sink)


def _shut(sock: socket.socket) -> None:
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


@contextmanager
def proxy() -> Iterator[Proxy]:
    """Run a proxy; whoever asked for it says where it leads."""
    found = Proxy()
    try:
        yield found
    finally:
        found.close()
