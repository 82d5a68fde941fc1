"""The composition root, as far as a process of its own does not show it better (see ``tests/system``)."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import trio
import trio.testing

from aep_relay import daemon
from aep_relay.config import Config, Listen


async def test_waiting_for_a_directory_does_not_hold_the_event_loop(tmp_path: Path) -> None:
    config = Config(listen=Listen(host=None, unix=str(tmp_path / "relay.sock")))
    other = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(other, fcntl.LOCK_EX)
        async with trio.open_nursery() as nursery:

            async def start() -> None:
                (listener,) = await daemon._open(config)
                listener.close()

            nursery.start_soon(start)
            await trio.testing.wait_all_tasks_blocked()
            assert nursery.child_tasks
            fcntl.flock(other, fcntl.LOCK_UN)
    finally:
        os.close(other)
