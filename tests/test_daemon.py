"""The composition root, as far as a process of its own does not show it better (see ``tests/system``)."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from aep_relay import daemon
from aep_relay.config import Config, Listen

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aep_relay.bindings.service import Service


async def test_the_operator_plane_is_imported_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[int] = []

    async def run(service: Service) -> None:
        done.append(threading.get_ident())

    def load() -> Callable[[Service], Awaitable[None]]:
        done.append(threading.get_ident())
        return run

    monkeypatch.setattr(daemon, "_load_operator_plane", load)
    config = Config(listen=Listen(port=0))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(daemon._operate, daemon._Parts(config, None, []).service)
    loading, running = done
    assert running == threading.get_ident() != loading


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
