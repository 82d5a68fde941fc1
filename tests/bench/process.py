"""A server under measurement: started pinned to one core, its CPU time and memory read from ``/proc``."""

from __future__ import annotations

import contextlib
import os
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from . import machine, pace

START_SECONDS = 20.0
STOP_SECONDS = 15.0
# A server accounts its last slice of CPU when it goes to sleep, a moment after the load has its last byte.
SETTLE_SECONDS = 0.003


class BenchError(Exception):
    """A scenario cannot go on: a server did not start, refused the load, or lost an Event."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What one run of a load cost the server."""

    cpu_seconds: float
    wall_seconds: float
    waited_seconds: float
    """Ready to run while something else held the core: what a busy machine adds to a latency."""
    decode_us: float
    """How fast the server's core was, by ``pace``: measured right before and right after."""

    @staticmethod
    def together(parts: Sequence[Measured]) -> Measured:
        """What short runs of the same load came to; they are alike, so the pace beside each counts the same."""
        return Measured(
            sum(part.cpu_seconds for part in parts),
            sum(part.wall_seconds for part in parts),
            sum(part.waited_seconds for part in parts),
            statistics.fmean(part.decode_us for part in parts),
        )

    def cpu_us_per(self, units: int) -> float:
        """Microseconds of the server's CPU for each of ``units``."""
        return self.cpu_seconds * 1e6 / units


@dataclass(slots=True)
class Server:
    """A running server: the loopback ``port`` it serves, its ``core``, the bearer ``token`` it asks for, if any."""

    process: subprocess.Popen[bytes]
    port: int
    core: machine.Core
    token: str = ""
    directory: Path = field(default_factory=Path)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def rss_bytes(self) -> int:
        return machine.rss_bytes(self.pid)

    def measure(self, load: Callable[[], object]) -> Measured:
        """Run ``load`` and return what it cost this server; ``load`` returns when its last byte has come."""
        measured, decode_us = pace.around(self.core, lambda: self._measure(load))
        return Measured(*measured, decode_us)

    def _measure(self, load: Callable[[], object]) -> tuple[float, float, float]:
        (ran, waited), wall = machine.schedule_nanoseconds(self.pid), time.perf_counter()
        load()
        wall_seconds = time.perf_counter() - wall
        time.sleep(SETTLE_SECONDS)
        ran_after, waited_after = machine.schedule_nanoseconds(self.pid)
        return (ran_after - ran) / 1e9, wall_seconds, (waited_after - waited) / 1e9

    def log(self) -> str:
        """The end of what the server wrote to its standard error."""
        return (self.directory / "log").read_text(errors="replace")[-2000:]


def free_port() -> int:
    """A loopback port that nothing listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def serving(
    command: Sequence[str | Path],
    port: int,
    core: machine.Core,
    *,
    token: str = "",
    files: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Server]:
    """Run ``command`` pinned to ``core`` for the block, in a directory of its own that holds ``files``.

    The block begins when ``port`` accepts connections. Raises ``BenchError`` if that does not happen.
    """
    with tempfile.TemporaryDirectory(prefix="aep-bench-") as name, contextlib.ExitStack() as stack:
        directory = Path(name)
        for file, text in (files or {}).items():
            (directory / file).write_text(text)
        log = stack.enter_context((directory / "log").open("wb"))
        with machine.pinned(core):
            process = subprocess.Popen(
                [str(part) for part in command],
                cwd=directory,
                env={**os.environ, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        machine.favour_session(process.pid)
        server = Server(process, port, core, token, directory)
        try:
            _await_port(server)
            yield server
        finally:
            _stop(process)


def _await_port(server: Server) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if server.process.poll() is not None:
            code = server.process.returncode
            raise BenchError(f"{server.process.args!r} ended with {code}: {server.log()}")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", server.port), timeout=1):
            return
        time.sleep(0.05)
    raise BenchError(f"{server.process.args!r} does not listen on port {server.port}: {server.log()}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
