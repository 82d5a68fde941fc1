"""The daemon as it is installed, in a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

PATIENCE_SECONDS = 30.0
QUIET = "[operator]\nenabled = false\n"


class Installed:
    """A running ``aep-relay serve``: its port, what it logs, how it ends."""

    def __init__(self, arguments: Sequence[str], env: Mapping[str, str], prefix: Sequence[str] = ()) -> None:
        self.lines: list[str] = []
        self._fresh: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "aep_relay", "serve", *arguments],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **env},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as stderr:
            for line in stderr:
                self.lines.append(line)
                self._fresh.put(line)
        self._fresh.put(None)

    def record(self, event: str) -> dict[str, Any]:
        """Wait for the next log record of ``event``."""
        while (line := self._fresh.get(timeout=PATIENCE_SECONDS)) is not None:
            with contextlib.suppress(ValueError):
                found: dict[str, Any] = json.loads(line)
                if found["event"] == event:
                    return found
        raise AssertionError(f"it ended without {event!r}: {''.join(self.lines)}")

    def port(self) -> int:
        """Wait until it listens; return the port."""
        address: str = self.record("listening")["addresses"][0]
        return int(address.rpartition(":")[2])

    def end(self, *signals: signal.Signals) -> int:
        """Send ``signals``; return the exit code once it is over."""
        for number in signals:
            self.process.send_signal(number)
        code = self.process.wait(PATIENCE_SECONDS)
        self._reader.join(PATIENCE_SECONDS)
        return code


@contextlib.contextmanager
def installed(
    folder: Path,
    config: str = QUIET,
    arguments: Sequence[str] = ("--port", "0"),
    *,
    prefix: Sequence[str] = (),
    **env: str,
) -> Iterator[Installed]:
    """A relay configured by ``config``, with ``arguments`` besides and ``env`` in its environment.

    ``prefix`` is a command that runs it.
    """
    file = folder / "relay.toml"
    file.write_text(config)
    file.chmod(0o600)
    relay = Installed(["--config", str(file), *arguments], env, prefix)
    try:
        yield relay
    finally:
        if relay.process.poll() is None:
            relay.process.kill()
        relay.end()
