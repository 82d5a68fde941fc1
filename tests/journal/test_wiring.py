"""Another archive and other files, while the relay runs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import trio

from aep_relay.config import Archive, Config, Tail
from aep_relay.hub.limits import Limits
from aep_relay.hub.relay import Relay
from aep_relay.journal.wiring import Journal
from aep_relay.protocol.event import decode
from tests.protocol.samples import MINIMAL, text


def line(number: int) -> bytes:
    return text(MINIMAL, id=f"e-{number}", seq=number) + b"\n"


async def until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(20):
        while not condition():  # noqa: ASYNC110  # nothing tells
            await trio.sleep(0.01)


class Running:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.relay = Relay(Limits())
        self.config = Config(archive=Archive(str(root / "one")), tail=(self.table("a"),))
        self.journal = Journal(self.config, self.relay, trio.lowlevel.checkpoint)

    def table(self, name: str) -> Tail:
        return Tail((str(self.root / f"{name}.jsonl"),), str(self.root / f"{name}.state"))

    def change(self, root: str, *tables: str) -> None:
        self.config = replace(
            self.config, archive=Archive(str(self.root / root)), tail=tuple(map(self.table, tables))
        )
        self.journal.prepare(self.config)()

    def write(self, name: str, *numbers: int) -> None:
        with (self.root / f"{name}.jsonl").open("ab") as file:
            file.write(b"".join(map(line, numbers)))

    def count(self, name: str) -> int:
        return self.journal.counts()[name][1]

    def archived(self, root: str) -> bytes:
        path = self.root / root / "claude-code" / "s_8f2c.jsonl"
        return path.read_bytes() if path.exists() else b""


@asynccontextmanager
async def running(root: Path) -> AsyncIterator[Running]:
    made = Running(root)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.journal.run)
        yield made
        nursery.cancel_scope.cancel()


async def test_what_stays_goes_on_and_what_is_new_begins(tmp_path: Path) -> None:
    async with running(tmp_path) as made:
        made.write("a", 1)
        await until(lambda: made.count("tail_events") == 1)
        (kept,), archive = made.journal.following, made.journal.archive
        made.change("one", "a", "b")
        assert made.journal.following[0] is kept
        assert made.journal.archive is archive
        made.write("a", 2)
        made.write("b", 3)
        await until(lambda: made.archived("one").count(b"\n") == 3)
        made.change("one", "b")
        await until(lambda: not made.journal._ending)
        made.write("a", 4)
        made.write("b", 5)
        await until(lambda: made.count("tail_events") == 4)
        assert len(made.relay.keepers) == 1
    assert {b"e-4" in made.archived("one"), b"e-5" in made.archived("one")} == {False, True}


async def test_another_archive_begins_when_the_old_one_is_written(tmp_path: Path) -> None:
    async with running(tmp_path) as made:
        made.relay.ingest(decode(line(1)))
        made.change("two")
        made.relay.ingest(decode(line(2)))
        assert made.count("archive_events_written") == 0
        await until(lambda: made.count("archive_events_written") == 2)
        assert (made.archived("one"), made.archived("two")) == (line(1), line(2))
        made.config = replace(made.config, archive=Archive())
        made.journal.prepare(made.config)()
        made.relay.ingest(decode(line(3)))
        await until(lambda: not made.journal._ending)
        assert made.count("archive_events_written") == 2


async def test_changed_and_changed_back_nothing_is_read_twice(tmp_path: Path) -> None:
    async with running(tmp_path) as made:
        made.write("a", 1, 2)
        await until(lambda: made.count("tail_events") == 2)
        made.change("one")
        made.change("one", "a")
        made.write("a", 3)
        await until(lambda: made.count("tail_events") == 3)
        await until(lambda: made.archived("one").count(b"\n") == 3)
    assert made.archived("one") == line(1) + line(2) + line(3)


async def test_an_archive_that_is_replaced_before_its_turn_writes_what_it_was_given(tmp_path: Path) -> None:
    async with running(tmp_path) as made:
        made.relay.ingest(decode(line(1)))
        await until(lambda: made.count("archive_events_written") == 1)
        made.change("two")
        made.relay.ingest(decode(line(2)))
        made.change("three")
        made.relay.ingest(decode(line(3)))
        await until(lambda: made.count("archive_events_written") == 3)
    assert [made.archived(root) for root in ("one", "two", "three")] == [line(1), line(2), line(3)]


async def test_an_archive_whose_relay_ends_before_its_turn_writes_what_it_was_given(tmp_path: Path) -> None:
    async with running(tmp_path) as made:
        made.relay.ingest(decode(line(1)))
        await until(lambda: made.count("archive_events_written") == 1)
        made.change("two")
        made.relay.ingest(decode(line(2)))
    assert (made.archived("one"), made.archived("two")) == (line(1), line(2))
