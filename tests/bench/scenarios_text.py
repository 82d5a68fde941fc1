"""Text: what the redaction pipeline costs a text that has nothing to hide."""

from __future__ import annotations

import time

from aep_relay.protocol.redaction import Redactor

from . import machine, pace
from .harness import Bench
from .report import Row

CLEAN = (
    "The agent read the client of the uploads and found that its retry loop does not wait for the server to answer; "
    "it now waits up to 30 seconds, doubling from 250 ms, and gives up after 8 attempts. The test that failed every "
    "tenth time has passed 200 times in a row. Next: the same loop in the downloads, where a timeout of 5 s is set in "
    "two places, and a note in the changelog of version 2.4. That is all of it."
)[:400]


def redaction(bench: Bench) -> list[Row]:
    """A clean text of 400 bytes through the redaction pipeline, everything switched on."""
    redact = Redactor(["DEPLOY_KEY"], ["a-listed-value"])
    count = bench.sized(20_000, 2_000)

    def run() -> float:
        with machine.pinned(bench.server_core):
            started = time.thread_time_ns()
            for _ in range(count):
                redact(CLEAN)
            return (time.thread_time_ns() - started) / 1e3 / count

    run()
    found = [pace.around(bench.server_core, run) for _ in range(bench.repeat)]
    runs, decode_us = zip(*found, strict=True)
    yardsticks, details = [pace.yardstick(decode_us)], {"units_per_run": count}
    return [Row("redaction", "a clean text of 400 bytes", "us", runs, 8.0, yardsticks, details)]
