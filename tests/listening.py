"""Programs of others that listen, while a test needs them."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

PATIENCE_SECONDS = 30.0
END_SECONDS = 10.0


@contextmanager
def listening(
    call: Sequence[str], port: int, log: Path, env: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run ``call`` until the block ends, which begins when somebody listens on ``port``; what it says is in ``log``."""
    with log.open("wb") as file, subprocess.Popen(call, stdout=file, stderr=file, env=env) as process:
        try:
            deadline = time.monotonic() + PATIENCE_SECONDS
            while not _listens(port):
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.02)
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


def _listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False
