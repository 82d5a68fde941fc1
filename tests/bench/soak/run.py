"""One run of the soak: everybody let loose, watched, called back, and judged."""

from __future__ import annotations

import hashlib
import os
import random
import re
import resource
import secrets
import signal
import statistics
import sys
import time
import urllib.request
from typing import Any

import trio

from .. import machine
from ..process import Server
from . import verdict
from .crowd import everybody
from .scene import Scene
from .verdict import Sample

TARGET_SHARE = 0.6
"""Of a core, for the relay."""
SAMPLE_SECONDS = 5.0
RELOAD_SECONDS = 20.0
FINISH_SECONDS = 150.0
"""For everybody to get what is missing, and to leave."""
SETTLE_SECONDS = 6.0
"""For the relay to see that they have: deaf ones have to be given up first."""
GROWTH_SECONDS = 240.0
"""A shorter run consists of first minutes only: buffers are filling, and growth means nothing."""
LIMITS: dict[str, Any] = {
    "buffer_events": 1_500,
    "max_sessions": 60,
    "max_session_bytes": 4 * 1024 * 1024,
    "max_buffer_bytes": 32 * 1024 * 1024,
    "soft_limit_bytes": 262_144,
    "hard_limit_bytes": 1_048_576,
    "max_event_bytes": 262_144,
    "head_timeout_seconds": 5,
    "hello_timeout_seconds": 5,
    "stalled_timeout_seconds": 15,
}


def metrics(port: int, token: str) -> dict[str, float]:
    """Return what the operator plane on ``port`` exposes, by name and labels."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/metrics", headers={"Authorization": f"Bearer {token}"}
    )
    with urllib.request.urlopen(request, timeout=20) as answer:  # noqa: S310  # loopback
        lines = answer.read().decode().splitlines()
    return {
        name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[:1] != "#")
    }


class Soak:
    """One run."""

    def __init__(self, server: Server, seconds: float, seed: int) -> None:
        self._server = server
        self._seconds = seconds
        self._file = server.directory / "relay.toml"
        self._text = self._file.read_text()
        self._operator_port = int(self._text.split("[operator]")[1].split("port = ")[1].split()[0])
        self._scene = Scene(server, random.Random(seed))  # noqa: S311  # nothing secret
        self._began = 0.0
        self._moment = 0.0
        self._ran = 0
        self._waited = 0
        self.reloads = 0
        self.samples: list[Sample] = []
        self.counters: dict[str, float] = {}
        self.failures: list[str] = []

    async def run(self) -> None:
        """Let everybody loose, watch, and call them back."""
        await trio.sleep(1)
        self._began = self._moment = time.monotonic()
        before = await self._sample()
        finished = False
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._reload)
            with trio.move_on_after(self._seconds + FINISH_SECONDS):
                async with trio.open_nursery() as crowd:
                    for peer in everybody(self._scene):
                        crowd.start_soon(peer)
                    await self._watch()
                    self._scene.emitting = False
                    await trio.sleep(3)
                    self._scene.end()
                finished = True
            nursery.cancel_scope.cancel()
        await trio.sleep(SETTLE_SECONDS)
        after = await self._sample()
        self._judge(before, after, finished)

    async def _watch(self) -> None:
        while (now := time.monotonic()) < self._began + self._seconds:
            await trio.sleep(1)
            if now - self._began >= (len(self.samples) + 1) * SAMPLE_SECONDS:
                sample = await self._sample()
                self.samples.append(sample)
                # The pace follows in small steps: load comes in waves, herds among them.
                step = (TARGET_SHARE / max(sample.share, 0.05)) ** 0.5
                self._scene.pace = min(40.0, self._scene.pace * min(2.0, max(0.5, step)))

    async def _sample(self) -> Sample:
        pid, now = self._server.pid, time.monotonic()
        found = await trio.to_thread.run_sync(metrics, self._operator_port, self._server.token)
        ran, self._waited = machine.schedule_nanoseconds(pid)
        share = (ran - self._ran) / 1e9 / max(now - self._moment, 0.001) if self._ran else 0.0
        self._ran, self._moment, self.counters = ran, now, found
        sample = Sample(
            round(now - self._began, 1),
            round(share, 3),
            machine.rss_bytes(pid),
            len(os.listdir(f"/proc/{pid}/fd")),
            int(found["aep_relay_tasks"]),
            int(found["aep_relay_open_connections"]),
            found["aep_relay_event_loop_late_seconds_max"],
        )
        tally = self._scene.tally
        print(
            f"{sample}; {tally.received:,} received, {len(tally.lost)} lost, pace {self._scene.pace:.2f}",
            file=sys.stderr,
        )
        return sample

    async def _reload(self) -> None:
        """Change a limit and a token, and have the relay take them over."""
        while True:
            await trio.sleep(RELOAD_SECONDS)
            self.reloads += 1
            token = secrets.token_hex(16)
            self._file.write_text(
                f"{self._text}max_subscriptions = {200 + self.reloads % 50}\n"
                f'[[tokens]]\nname = "changing"\nsha256 = "{hashlib.sha256(token.encode()).hexdigest()}"\n'
                'grants = ["consume"]\n'
            )
            self._server.process.send_signal(signal.SIGHUP)
            self._scene.tokens = [self._server.token, token]

    def _judge(self, before: Sample, after: Sample, finished: bool) -> None:
        scene, failures = self._scene, self.failures
        failures += scene.failures
        if scene.tally.lost:
            failures.append(f"{len(scene.tally.lost)} gaps: {'; '.join(scene.tally.lost[:5])}")
        if not finished:
            failures.append("not everybody got what was missing and left")
        failures += verdict.left(before, after)
        if self._seconds >= GROWTH_SECONDS:
            failures += verdict.grown(self.samples)
        self.samples.append(after)

    def figures(self) -> dict[str, float]:
        """Return what there is to say about the run."""
        scene, tally, counters = self._scene, self._scene.tally, self.counters
        warm = verdict.warm(self.samples[:-1])
        sizes = verdict.growth(self.samples[:-1])
        load = resource.getrusage(resource.RUSAGE_SELF)
        return {
            "minutes": self._seconds / 60,
            "relay's share of a core": round(statistics.fmean(sample.share for sample in warm), 3),
            "share of the time it waited for one": round(self._waited / 1e9 / self.samples[-1].seconds, 3),
            "load's share of a core": round((load.ru_utime + load.ru_stime) / self.samples[-1].seconds, 3),
            **{
                f"{name}, {part}": value[at]
                for name, value in sizes.items()
                for at, part in enumerate(("early", "late"))
            },
            "rss_bytes, when all have left": self.samples[-1].rss_bytes,
            "event loop late at worst, ms": round(max(sample.late_seconds for sample in self.samples) * 1000),
            "reloads": self.reloads,
            "sessions": scene.sessions_made,
            "essential Events received": tally.received,
            "received again": tally.repeated,
            "said to be gone": tally.excused,
            "lost": len(tally.lost),
            **dict(sorted(scene.counts.items())),
            **{name: value for name, value in counters.items() if name.startswith(_TOLD)},
        }


_TOLD = (
    "aep_relay_events_received",
    "aep_relay_events_delivered",
    "aep_relay_events_replayed",
    "aep_relay_events_dropped",
    "aep_relay_events_evicted",
    "aep_relay_replays_exhausted",
    "aep_relay_connections_opened",
    "aep_relay_disconnects",
    "aep_relay_refusals",
)


_ERROR = re.compile(r'"level": ?"(error|critical)"|Traceback')


def troubles(log: str, reloads: int) -> list[str]:
    """Return what a relay's log says that must not be."""
    lines = log.splitlines()
    found = [line for line in lines if _ERROR.search(line)][:5]
    taken = sum("configuration reloaded" in line for line in lines)
    if taken < reloads - 1:
        found.append(f"{taken} of {reloads} configurations were taken over")
    return found
