"""An installed relay with its operator plane, each on a free port."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.installed import PATIENCE_SECONDS, Installed, installed

TOKEN = "token-of-the-system-tests"


@dataclass(frozen=True)
class Operated:
    """A running relay."""

    relay: Installed
    port: int
    """Of the data plane."""
    ops_port: int
    token: str | None


@contextmanager
def operated(
    folder: Path, *, token: str | None = TOKEN, operator: str = "", more: str = ""
) -> Iterator[Operated]:
    """Run a relay; ``operator`` is added to its ``[operator]`` table, ``more`` to its configuration."""
    auth = "" if token is None else f'[auth]\ntoken = "{token}"\n'
    config = f"{auth}[operator]\nport = 0\n{operator}\n{more}\n"
    with installed(folder, config) as relay:
        ports = [_port(relay, event) for event in ("listening", "operator plane listening")]
        yield Operated(relay, ports[0], ports[1], token)


def _port(relay: Installed, event: str) -> int:
    """Wait until the log says what listens where; the two planes come in any order."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        for line in list(relay.lines):
            with suppress(ValueError):
                record = json.loads(line)
                if record["event"] == event:
                    return int(record["addresses"][0].rpartition(":")[2])
        assert relay.process.poll() is None, relay.lines
        time.sleep(0.02)
    raise AssertionError(f"no {event!r}: {relay.lines}")
