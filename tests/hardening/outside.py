"""The daemon in a process of its own, as it is installed: its memory, its descriptors, its log."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.hardening.client import ask, request
from tests.installed import QUIET, Installed, installed

MIB = 1 << 20
PATIENCE_SECONDS = 60.0


@dataclass
class Outside:
    """A running relay."""

    installed: Installed
    port: int

    @property
    def pid(self) -> int:
        return self.installed.process.pid

    @property
    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    @property
    def rss_bytes(self) -> int:
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise LookupError("VmRSS")

    @property
    def health(self) -> dict[str, Any]:
        found: dict[str, Any] = ask(self.port, request("GET", "/healthz")).json
        return found

    def settle(self, descriptors: int) -> None:
        """Wait until no more than so many descriptors are open."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self.descriptors > descriptors and time.monotonic() < deadline:
            time.sleep(0.02)
        assert self.descriptors <= descriptors

    def records(self) -> list[dict[str, Any]]:
        """Return what has been logged, each line of it JSON."""
        return [json.loads(line) for line in self.installed.lines]


@contextlib.contextmanager
def outside(folder: Path, config: str = "", **env: str) -> Iterator[Outside]:
    """Run the daemon for the block. Nothing may have gone wrong when it ends."""
    with installed(folder, QUIET + config, **env) as relay:
        found = Outside(relay, relay.port())
        yield found
        relay.process.terminate()
        assert relay.end() == 0
        failures = [record for record in found.records() if record["level"] == "error"]
        assert [record for record in failures if record["event"] != "cannot accept connections"] == []
