"""The machine under the benchmark: its cores, the counters of ``/proc``, and what it says of itself."""

from __future__ import annotations

import contextlib
import datetime
import os
import platform
import resource
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

Core = int
_NICE = -15
_SCHEDULED = 2
"""CPUCLOCK_SCHED, in the low bits of the clock of a process."""


def cores() -> tuple[Core, Core]:
    """The core the measured servers run on and the core the load runs on; the same where there is but one."""
    available = sorted(os.sched_getaffinity(0))
    return available[-1], available[0]


@contextlib.contextmanager
def pinned(core: Core) -> Iterator[None]:
    """Pin this process to ``core`` for the block: what is started within inherits it, every thread of it."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def raise_descriptor_limit() -> int:
    """Raise RLIMIT_NOFILE to its hard limit, for this process and what it starts; returns the limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


@contextlib.contextmanager
def favoured() -> Iterator[int]:
    """Put this process and what it starts before others that share the machine, if that is allowed.

    Yields the nice value there is then. What still came in between shows as time waited.
    """
    before = os.getpriority(os.PRIO_PROCESS, 0)
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, _NICE)
    favour_session(os.getpid())
    try:
        yield os.getpriority(os.PRIO_PROCESS, 0)
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, before)
        favour_session(os.getpid(), before)


def favour_session(pid: int, nice: int = _NICE) -> None:
    """Do the same for the session ``pid`` is in, where the scheduler groups by session (sched(7), autogroup)."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text(str(nice))


def schedule_nanoseconds(pid: int) -> tuple[int, int]:
    """Time ``pid`` has spent on cores so far, threads that have ended included, and its living threads ready for one
    that others held.
    """
    # The clock that clock_getcpuclockid(3) names: the sum over the threads listed would fall when one of them ends.
    ran = time.clock_gettime_ns(~pid << 3 | _SCHEDULED)
    waited = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        # A thread may end between the listing and the read.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            waited += int((task / "schedstat").read_text().split()[1])
    return ran, waited


def _status_kib(pid: int, field: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1])
    raise LookupError(f"/proc/{pid}/status has no {field}")


def rss_bytes(pid: int) -> int:
    """Resident memory of ``pid`` now."""
    return _status_kib(pid, "VmRSS") * 1024


def peak_rss_bytes(pid: int) -> int:
    """The most resident memory ``pid`` has had since ``reset_peak_rss``."""
    return _status_kib(pid, "VmHWM") * 1024


def reset_peak_rss(pid: int) -> None:
    """Let the peak of ``pid`` start again from what it holds now (proc(5), ``clear_refs``)."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def describe(server_core: Core, load_core: Core, nice: int, nats_version: str | None) -> dict[str, str]:
    """What a figure depends on: date, processor, kernel and versions, for the table's head and the JSON."""
    facts = {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "cpu": _cpu_model(),
        "cores": f"{os.cpu_count()} (server on {server_core}, load on {load_core})",
        "nice": str(nice),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "nats-server": nats_version or "not installed",
    }
    for package in ("aep-relay", "trio", "msgspec", "httptools", "websockets"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            facts[package] = metadata.version(package)
    return facts
