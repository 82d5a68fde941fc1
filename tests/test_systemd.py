"""What the service manager is told, in which order, and what it is not told when the event loop is stuck."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
import trio.testing

from aep_relay.systemd import STATUS_SECONDS, Manager
from tests.fakes.manager import Notified


def manager_of(notified: Notified, **environ: str) -> Manager:
    return Manager({"NOTIFY_SOCKET": notified.address, **environ})


@pytest.fixture(params=["path", "abstract"])
def notified(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Notified]:
    path = tmp_path / "notify"
    found = Notified(str(path) if request.param == "path" else f"@aep-relay-test-{os.getpid()}")
    with found.socket:
        yield found


def test_each_state_is_one_message(notified: Notified) -> None:
    manager = manager_of(notified)
    manager.ready("listening on 127.0.0.1:8787")
    before = time.monotonic_ns() // 1000
    manager.reloading()
    after = time.monotonic_ns() // 1000
    manager.ready("taken over")
    manager.stopping("draining\n2 connections")
    ready, reloading, again, stopping = notified.messages()
    assert ready == ["READY=1", "STATUS=listening on 127.0.0.1:8787"]
    assert reloading[0] == "RELOADING=1"
    assert before <= int(reloading[1].removeprefix("MONOTONIC_USEC=")) <= after
    assert again == ["READY=1", "STATUS=taken over"]
    # A line break would begin another assignment.
    assert stopping == ["STOPPING=1", "STATUS=draining 2 connections"]


async def test_the_watchdog_is_fed_twice_as_often_as_it_asks(
    notified: Notified, autojump_clock: trio.testing.MockClock
) -> None:
    manager = manager_of(notified, WATCHDOG_USEC="4000000", WATCHDOG_PID=str(os.getpid()))
    assert manager.watchdog_seconds == 4.0
    with trio.move_on_after(9):
        await manager.beat(lambda: "at work")
    assert notified.messages() == [["WATCHDOG=1", "STATUS=at work"], *[["WATCHDOG=1"]] * 4]


async def test_without_a_watchdog_only_a_changed_status_is_told(
    notified: Notified, autojump_clock: trio.testing.MockClock
) -> None:
    statuses = iter(["one", "one", "two", "two"])
    with trio.move_on_after(STATUS_SECONDS * 3.5):
        await manager_of(notified).beat(lambda: next(statuses))
    assert notified.messages() == [["STATUS=one"], ["STATUS=two"]]


async def test_a_stuck_loop_does_not_feed_the_watchdog(notified: Notified) -> None:
    manager = manager_of(notified, WATCHDOG_USEC="20000")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(manager.beat, lambda: "at work")
        await trio.testing.wait_all_tasks_blocked()
        assert notified.messages()[0] == ["WATCHDOG=1", "STATUS=at work"]
        time.sleep(0.1)  # noqa: ASYNC251 - this is the stuck loop
        assert notified.messages() == []
        await trio.sleep(0.02)
        assert ["WATCHDOG=1"] in notified.messages()
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"WATCHDOG_USEC": ""},
        {"WATCHDOG_USEC": "0"},
        {"WATCHDOG_USEC": "-5"},
        {"WATCHDOG_USEC": "²"},
        {"WATCHDOG_USEC": "9" * 30},
        {"WATCHDOG_USEC": "5000000", "WATCHDOG_PID": "1"},
    ],
)
def test_a_watchdog_that_is_not_ours_or_none(environ: dict[str, str]) -> None:
    assert Manager(environ).watchdog_seconds is None


@pytest.mark.parametrize("address", ["", "vsock:2:1234", "relative"])
def test_no_manager_is_no_failure(address: str) -> None:
    manager = Manager({"NOTIFY_SOCKET": address})
    manager.ready("listening")
    manager.stopping("draining")


def test_a_manager_that_is_gone_is_no_failure(notified: Notified) -> None:
    manager = manager_of(notified)
    notified.socket.close()
    for _ in range(2):
        manager.ready("listening")


async def test_a_manager_that_does_not_read_is_not_waited_for(
    notified: Notified, autojump_clock: trio.testing.MockClock
) -> None:
    manager = manager_of(notified, WATCHDOG_USEC="60000000")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as filler:
        filler.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                filler.sendto(b"full", notified.address.replace("@", "\0", 1))
        manager.ready("listening")
        manager.reloading()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(manager.beat, lambda: "at work")
        await trio.sleep(1)
        assert {*map(tuple, notified.messages())} == {("full",)}
        await trio.sleep(1)
        told = notified.messages()
        manager.stopping("draining")
        nursery.cancel_scope.cancel()
    assert [message[0] for message in told] == ["READY=1", "RELOADING=1", "WATCHDOG=1"]
    assert told[0] == ["READY=1", "STATUS=listening"]
    assert told[2] == ["WATCHDOG=1", "STATUS=at work"]
    assert notified.messages() == [["STOPPING=1", "STATUS=draining"]]


async def test_what_has_no_room_while_it_beats_is_sent_again_soon(
    notified: Notified, autojump_clock: trio.testing.MockClock
) -> None:
    manager = manager_of(notified, WATCHDOG_USEC="60000000")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(manager.beat, lambda: "at work")
        await trio.testing.wait_all_tasks_blocked()
        manager.ready("at work")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as filler:
            filler.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    filler.sendto(b"full", notified.address.replace("@", "\0", 1))
        manager.reloading()
        notified.messages()
        await trio.sleep(1)
        assert [message[0] for message in notified.messages()] == ["RELOADING=1", "WATCHDOG=1"]
        nursery.cancel_scope.cancel()


def test_on_the_way_out_nothing_else_is_told(notified: Notified) -> None:
    manager = manager_of(notified)
    manager.stopping("draining")
    manager.reloading()
    manager.ready("taken over")
    assert notified.messages() == [["STOPPING=1", "STATUS=draining"]]
