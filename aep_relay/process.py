"""What the process asks of the system and of the interpreter: descriptors, and when garbage is looked for."""

from __future__ import annotations

import gc
import resource
import time
from typing import NoReturn

import trio

UNLIMITED_DESCRIPTORS = 1_048_576
"""What is asked for where the system sets no limit."""

NEVER = 1_000_000
COLLECT_SECONDS = 60.0
COLLECT_SHARE = 5_000
"""A full collection is followed by a pause this many times as long."""


def raise_descriptor_limit() -> int:
    """Raise the limit on open descriptors as far as it goes; return it. Each connection takes one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = UNLIMITED_DESCRIPTORS if hard == resource.RLIM_INFINITY else hard
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):
        return soft
    return wanted


def collect_rarely() -> None:
    """Keep the interpreter from full collections of its own accord: ``collect_now_and_then`` does them.

    A full collection visits every container alive, and with ten thousand connections stops everything for a third of
    a second. A connection leaves no cycle behind when it ends, so there is next to nothing to find; the young
    generations are still collected as usual.
    """
    gc.collect()
    gc.freeze()
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, NEVER)


async def collect_now_and_then() -> NoReturn:
    """Do a full collection now and then, the more seldom the longer it takes."""
    pause = COLLECT_SECONDS
    while True:
        await trio.sleep(pause)
        began = time.perf_counter()
        gc.collect()
        pause = max(COLLECT_SECONDS, (time.perf_counter() - began) * COLLECT_SHARE)
