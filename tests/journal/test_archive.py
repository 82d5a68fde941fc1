from __future__ import annotations

import errno
import os
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from aep_relay.config import Archive as Settings
from aep_relay.hub.limits import Limits
from aep_relay.hub.relay import Relay
from aep_relay.journal import archive as module
from aep_relay.journal.archive import Archive, path_of
from aep_relay.protocol.event import Event, decode


def event(number: int = 0, *, session: str | None = "s", agent: str = "a", severity: str = "info") -> Event:
    scope = f'"session":"{session}","seq":{number},' if session is not None else ""
    type_ = "agent.registered" if session is None else "run.started"
    return decode(
        f'{{"aep":"0.1","id":"e-{session}-{number}","type":"{type_}","time":"2026-01-05T09:00:00Z",'
        f'"source":"aep://h","agent":"{agent}",{scope}"severity":"{severity}"}}'.encode()
    )


def command() -> Event:
    return decode(
        b'{"aep":"0.1","id":"c","type":"control.cancel","time":"2026-01-05T09:00:00Z","source":"aep://h",'
        b'"agent":"a","session":"s"}'
    )


@asynccontextmanager
async def running(root: Path, **settings: int) -> AsyncIterator[Archive]:
    archive = Archive(str(root), Settings(str(root), **settings))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(archive.run)
        yield archive
        nursery.cancel_scope.cancel()


async def until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(10):
        while not condition():  # noqa: ASYNC110  # a worker thread tells nobody
            await trio.sleep(0.001)


def lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines()


def tree(root: Path) -> dict[str, list[bytes]]:
    return {str(path.relative_to(root)): lines(path) for path in root.rglob("*.jsonl")}


async def test_a_file_for_each_session(tmp_path: Path) -> None:
    events = [
        event(0),
        event(1),
        event(0, session="t"),
        event(0, session=None),
        event(2),
        event(0, agent="b"),
    ]
    async with running(tmp_path) as archive:
        for each in events:
            archive.keep(each)
    assert tree(tmp_path) == {
        "a/s.jsonl": [events[0].raw, events[1].raw, events[4].raw],
        "a/t.jsonl": [events[2].raw],
        "a/%agent.jsonl": [events[3].raw],
        "b/s.jsonl": [events[5].raw],
    }
    assert (archive.written_events, archive.lost_events, archive.pending_bytes) == (6, 0, 0)


async def test_an_event_is_one_line(tmp_path: Path) -> None:
    spread = event().raw.replace(b",", b",\r\n ")
    async with running(tmp_path) as archive:
        archive.keep(decode(spread))
    assert lines(tmp_path / "a" / "s.jsonl") == [spread.replace(b"\r\n", b"")]


@given(st.text(), st.text() | st.none())
def test_no_name_leaves_the_root(agent: str, session: str | None) -> None:
    folder, name = path_of(agent, session).split("/")
    assert not folder.startswith((".", "-"))
    assert not name.startswith((".", "-"))
    assert folder.isascii()
    assert folder.isprintable()
    assert len(name) <= 255


@given(st.lists(st.tuples(st.text(), st.text() | st.none()), unique=True))
def test_no_two_sessions_share_a_file(names: list[tuple[str, str | None]]) -> None:
    assert len({path_of(*name) for name in names}) == len(names)


async def test_what_the_relay_keeps(tmp_path: Path) -> None:
    relay = Relay(Limits())
    async with running(tmp_path) as archive:
        relay.keepers.append(archive.keep)
        for each in (event(0), event(1), event(0), event(0, session=None), event(0, session=None)):
            relay.ingest(each)
        assert relay.ingest(command()) is not None
        relay.take_over(command(), None)
        relay.take_over(command(), None)
    assert lines(tmp_path / "a" / "s.jsonl") == [event(0).raw, event(1).raw, command().raw]
    assert len(lines(tmp_path / "a" / "%agent.jsonl")) == 2


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


class Disk:
    """Stands between the archive and the system's ``write``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.error: int | None = None
        self.free = threading.Event()
        self.free.set()
        self._write = os.write
        monkeypatch.setattr(os, "write", self.write)
        monkeypatch.setattr(module, "RETRY_SECONDS", 0.001)

    def write(self, descriptor: int, data: bytes) -> int:
        if data.startswith(b'{"aep"'):
            self.free.wait(10)
            if self.error is not None:
                raise OSError(self.error, os.strerror(self.error))
        return self._write(descriptor, data)


async def test_a_full_disk_is_reported_and_survived(tmp_path: Path, disk: Disk) -> None:
    disk.error = errno.ENOSPC
    with capture_logs() as logs:
        async with running(tmp_path) as archive:
            archive.keep(event(0))
            archive.keep(event(0, session="t"))
            await until(lambda: archive.problem is not None)
            assert archive.problem == "No space left on device"
            archive.keep(event(1))
            disk.error = None
            await until(lambda: archive.written_events == 3)
    assert lines(tmp_path / "a" / "s.jsonl") == [event(0).raw, event(1).raw]
    assert [record["event"] for record in logs] == ["archive cannot be written", "archive writes again"]
    assert archive.lost_events == 0


async def test_a_file_of_its_own_trouble_does_not_hold_up_the_others(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"")
    async with running(tmp_path) as archive:
        for each in (event(0), event(0, agent="b")):
            archive.keep(each)
        await until(lambda: archive.written_events == 1)
        archive.keep(event(1, agent="b"))
        await until(lambda: archive.written_events == 2)
    assert archive.lost_events == 1


async def test_debug_and_info_go_first(tmp_path: Path, disk: Disk) -> None:
    disk.free.clear()
    size = len(event(0, severity="notice").raw) + 1 + module.LINE_OVERHEAD_BYTES
    async with running(tmp_path, max_pending_bytes=4 * size) as archive:
        archive.keep(event(0))
        await until(lambda: archive.pending_bytes == 0)  # it is with the worker
        for number, severity in enumerate(["info", "error", "debug", "notice", "info", "notice", "error"], 1):
            archive.keep(event(number, severity=severity))
        assert archive.pending_bytes <= 4 * size
        disk.free.set()
        await until(lambda: archive.pending_bytes == 0)
    kept = [decode(line) for line in lines(tmp_path / "a" / "s.jsonl")]
    assert [each.seq for each in kept] == [0, 2, 4, 6, 7]
    assert archive.lost_events == 3
    assert archive.written_events == 5


async def test_the_oldest_goes_when_all_have_weight(tmp_path: Path, disk: Disk) -> None:
    disk.free.clear()
    size = len(event(0, severity="error").raw) + 1 + module.LINE_OVERHEAD_BYTES
    async with running(tmp_path, max_pending_bytes=2 * size) as archive:
        archive.keep(event(0))
        await until(lambda: archive.pending_bytes == 0)
        for number in range(1, 5):
            archive.keep(event(number, severity="error"))
        archive.keep(event(9, severity="error", session="s" * size * 3))
        disk.free.set()
        await until(lambda: archive.pending_bytes == 0)
    assert [decode(line).seq for line in lines(tmp_path / "a" / "s.jsonl")] == [0, 3, 4]
    assert archive.lost_events == 3


async def test_no_more_goes_than_there_must_be_room_for(tmp_path: Path) -> None:
    size = len(event(0, severity="notice").raw) + 1 + module.LINE_OVERHEAD_BYTES
    archive = Archive(str(tmp_path), Settings(str(tmp_path), max_pending_bytes=1000 * size))
    for number in range(1000):
        archive.keep(event(number % 10, severity="debug"))
    assert archive.lost_events == 0
    before = archive.pending_bytes
    while archive.pending_bytes + size <= 1000 * size:
        archive.keep(event(0, severity="notice"))
    assert archive.pending_bytes > before
    for lost in (1, 2):
        archive.keep(event(1, severity="debug"))
        archive.keep(event(0, severity="notice"))
        # The one that was refused, the one that went for it, and perhaps one more: a debug line is shorter.
        assert 2 * lost <= archive.lost_events <= 3 * lost


async def test_so_many_lines_are_gathered_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WRITE_LINES", 3)
    gathered: list[int] = []
    write = Archive._write

    def spy(
        self: Archive, by_path: dict[str, list[module._Line]]
    ) -> tuple[list[module._Line], int, OSError | None]:
        gathered.append(sum(map(len, by_path.values())))
        return write(self, by_path)

    monkeypatch.setattr(Archive, "_write", spy)
    async with running(tmp_path) as archive:
        await trio.testing.wait_all_tasks_blocked()
        for number in range(8):
            archive.keep(event(number, severity=("debug", "notice")[number % 2]))
        await until(lambda: archive.written_events == 8)
    assert gathered == [3, 3, 2]
    assert lines(tmp_path / "a" / "s.jsonl") == [
        event(number, severity=("debug", "notice")[number % 2]).raw for number in range(8)
    ]


async def test_what_is_tried_again_stays_in_order(tmp_path: Path, disk: Disk) -> None:
    disk.error = errno.ENOSPC
    severities = ["notice", "debug", "debug", "notice", "notice", "debug", "notice", "debug"]
    sessions = ["s", "t", "s", "t", "s", "t", "t", "s"]
    events = [
        event(number, session=session, severity=severity)
        for number, (session, severity) in enumerate(zip(sessions, severities, strict=True))
    ]
    async with running(tmp_path) as archive:
        for each in events:
            archive.keep(each)
        await until(lambda: archive.problem is not None)
        disk.error = None
        await until(lambda: archive.written_events == len(events))
    for session in ("s", "t"):
        expected = [each.raw for each in events if each.session == session]
        assert lines(tmp_path / "a" / f"{session}.jsonl") == expected


async def test_what_waits_is_written_at_the_end(tmp_path: Path, disk: Disk) -> None:
    async with running(tmp_path) as archive:
        await trio.testing.wait_all_tasks_blocked()
        for number in range(1000):
            archive.keep(event(number))
    assert len(lines(tmp_path / "a" / "s.jsonl")) == 1000


async def test_a_disk_that_hangs_does_not_hold_up_the_end(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FINISH_SECONDS", 0.01)
    disk.free.clear()
    with trio.fail_after(5):
        async with running(tmp_path) as archive:
            archive.keep(event(0))
            await until(lambda: archive.pending_bytes == 0)
            archive.keep(event(1))
    disk.free.set()
    assert archive.lost_events >= 1
