from __future__ import annotations

import contextlib
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.installed import QUIET, installed
from tests.ports import free_port
from tests.system.running import PATIENCE_SECONDS, Running

if TYPE_CHECKING:
    Run = Callable[..., contextlib.AbstractContextManager[Running]]


def wait_for(port: int) -> int:
    """Wait for a relay that does not say when it listens."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        else:
            return port


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Return what runs the installed daemon on a free port: ready when entered, ended with exit code 0 when left."""

    @contextlib.contextmanager
    def run(
        config: str = "", *, port: int = 0, token: str | None = None, log: str = "info", **env: str
    ) -> Iterator[Running]:
        auth = "" if token is None else f'[auth]\ntoken = "{token}"\n'
        settings = f'{QUIET}{auth}[log]\nlevel = "{log}"\n{config}'
        silent = log in ("warning", "error")
        if silent:
            port = free_port()
        with installed(tmp_path, settings, ["--port", str(port)], **env) as relay:
            running = Running(relay, wait_for(port) if silent else relay.port(), token)
            with running.client:
                yield running
            if relay.process.poll() is None:
                assert relay.end(signal.SIGTERM) == 0, "".join(relay.lines)

    return run
