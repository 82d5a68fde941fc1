from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from aep_relay.config import Archive, Config, Tail
from aep_relay.hub.limits import Limits
from aep_relay.hub.relay import Relay
from aep_relay.journal import following as module
from aep_relay.journal.tail import Source
from aep_relay.journal.wiring import Journal
from aep_relay.protocol.jsonl import Placed
from aep_relay.protocol.reporting import REPORTS_EACH, WINDOW_SECONDS
from aep_relay.transport import turn
from tests.fakes.turns import prepared as prepared
from tests.fakes.turns import set_aside as set_aside
from tests.fakes.turns import turns as turns
from tests.protocol.samples import MINIMAL, text
from tests.protocol.test_intake import STDIO


class Journaled:
    """A relay with its journal, and how often it was flushed."""

    def __init__(self, root: Path, **tail: str) -> None:
        self.relay = Relay(Limits(max_event_bytes=1000))
        self.flushes = 0
        config = Config(
            archive=Archive(str(root / "archive")),
            tail=(Tail((str(root / "**" / "*.jsonl"),), **tail),),
            limits=self.relay.limits,
        )
        self.journal = Journal(config, self.relay, self.flush)
        (self.following,) = self.journal.following

    async def flush(self) -> None:
        self.flushes += 1

    async def look(self) -> None:
        while await self.following.tail.turn(self.following.accept):
            pass

    def held(self, session: str) -> list[str]:
        buffer = self.relay.store.get(session)
        return [] if buffer is None else [event.id for event in buffer._items]


def line(number: int, **changes: object) -> bytes:
    return text(MINIMAL, id=f"e-{number}", seq=number, **changes) + b"\n"


async def test_lines_become_events_of_the_relay(tmp_path: Path) -> None:
    made = Journaled(tmp_path)
    (tmp_path / "a.jsonl").write_bytes(line(1) + b"\r\n" + line(2) + line(1))
    await made.look()
    assert made.held("s_8f2c") == ["e-1", "e-2"]
    assert (made.following.accepted_events, made.flushes) == (3, 1)


async def test_the_stdio_dialect_is_mapped_and_held_to_the_ceiling(tmp_path: Path) -> None:
    made = Journaled(tmp_path, agent="worker")
    (tmp_path / "a.jsonl").write_bytes(
        b'{"aep_version":"0.1","id":"1","type":"tool.requested","source":"w","session_id":"t",'
        b'"created_at":"2026-01-05T09:00:00Z","payload":{"tool":{"name":"Bash"},"args":{"c":"ls"}}}\n'
    )
    await made.look()
    buffer = made.relay.store.get("t")
    assert buffer is not None
    (event,) = buffer._items
    assert (event.agent, event.source) == ("worker", "aep://stdio/w")
    assert b'"args"' not in event.raw
    assert b'"args_digest"' in event.raw


async def test_what_is_no_event_holds_up_nothing(tmp_path: Path) -> None:
    made = Journaled(tmp_path)
    command = text(MINIMAL, "seq", type="control.cancel") + b"\n"
    (tmp_path / "a.jsonl").write_bytes(
        b"hello\n" + b"x" * 2000 + b"\n" + command + line(1, aep="1.0") + line(2, aep="1.0") + line(3)
    )
    with capture_logs() as logs:
        await made.look()
    assert made.held("s_8f2c") == ["e-3"]
    assert (made.following.lines.refused_lines, made.following.lines.skipped_lines) == (3, 2)
    at = 2007 + len(command)
    assert [(record["event"], record.get("offset"), record.get("code")) for record in logs] == [
        ("files found", None, None),
        ("line left out", 0, "protocol_error"),
        ("line left out", 6, "invalid_envelope"),
        ("line left out", 2007, "unauthorized"),
        ("lines of a version that is not supported are skipped", at, None),
    ]
    assert "1.0" in logs[4]["detail"]


async def test_an_unsupported_version_is_reported_once_for_each_file(tmp_path: Path) -> None:
    made = Journaled(tmp_path)
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_bytes(line(1, aep="1.0") + line(2, aep="1.0"))
    with capture_logs() as logs:
        await made.look()
        (tmp_path / "a.jsonl").rename(tmp_path / "a.jsonl.1")
        (tmp_path / "a.jsonl").write_bytes(line(3, aep="1.0"))
        made.following.tail._next_scan = 0.0
        await made.look()
    reported = [Path(record["path"]).name for record in logs if "detail" in record]
    assert reported == ["a.jsonl", "b.jsonl", "a.jsonl"]


async def test_of_many_bad_lines_the_rest_is_counted(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    lines = Journaled(tmp_path).following.lines
    source = Source("a", (0, 0))
    with capture_logs() as logs:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lines.report)
            for number in range(REPORTS_EACH + 7):
                lines.event(source, Placed(number, 6 * number, b"hello"))
            await trio.sleep(WINDOW_SECONDS * 2.5)
            for number in range(REPORTS_EACH + 1):
                lines.event(source, Placed(number, 6 * number, b"hello"))
            nursery.cancel_scope.cancel()
    assert lines.refused_lines == 2 * REPORTS_EACH + 8
    assert [record["event"] for record in logs].count("line left out") == 2 * REPORTS_EACH
    assert [record["lines"] for record in logs if record["event"] == "more lines left out"] == [7, 1]


@pytest.mark.parametrize("bad", [b"x\n", b"{}\n", b"x" * 2000 + b"\n", line(1, aep="1.0"), line(1)])
async def test_others_have_their_turn_whatever_the_lines_are(
    bad: bytes, tmp_path: Path, turns: list[None]
) -> None:
    made = Journaled(tmp_path)
    (tmp_path / "a.jsonl").write_bytes(bad * 50)
    await made.look()
    assert len(turns) == 50 + 1
    # What was taken in is on its way before others have their turn.
    assert made.flushes == 50 + 1


async def test_others_have_their_turn_between_files(
    tmp_path: Path, turns: list[None], monkeypatch: pytest.MonkeyPatch
) -> None:
    # However short they are.
    monkeypatch.setattr(turn, "TURN_SECONDS", 60.0)
    made = Journaled(tmp_path)
    for number in range(10):
        (tmp_path / f"{number}.jsonl").write_bytes(line(number))
    await made.look()
    assert len(turns) == 10


async def test_large_ones_are_taken_in_in_steps_and_in_order(tmp_path: Path, prepared: list[str]) -> None:
    made = Journaled(tmp_path)
    large = {"data": {"text": "x" * 500}}
    (tmp_path / "a.jsonl").write_bytes(line(1) + line(2, **large) + line(3))
    await made.look()
    assert prepared == ["e-2"]
    assert made.held("s_8f2c") == ["e-1", "e-2", "e-3"]


async def test_what_takes_long_is_read_aside_and_in_order(tmp_path: Path, set_aside: list[bytes]) -> None:
    made = Journaled(tmp_path)
    lines = [
        text(STDIO, id="1"),
        text(STDIO, id="2", payload={"text": "x" * 500}),
        b'{"text":"' + b"x" * 500 + b'"}',
        b"x" * 2000,
        text(STDIO, id="3"),
    ]
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    await made.look()
    assert set_aside == lines[1:3]
    assert made.held("s-1") == ["1", "2", "3"]
    assert made.following.lines.refused_lines == 2


async def test_what_is_archived_does_not_come_in_again(tmp_path: Path) -> None:
    made = Journaled(tmp_path)
    (tmp_path / "a.jsonl").write_bytes(line(1))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.journal.run)
        archived = tmp_path / "archive" / "claude-code" / "s_8f2c.jsonl"
        with trio.fail_after(10):
            while not made.journal.counts()["archive_events_written"][1]:  # noqa: ASYNC110  # tells nobody
                await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    await made.look()
    assert archived.read_bytes() == line(1)
    counts = {name: count for name, (_, count) in made.journal.counts().items()}
    assert counts == {
        "archive_events_written": 1,
        "archive_events_lost": 0,
        "tail_events": 1,
        "tail_lines_refused": 0,
        "tail_lines_skipped": 0,
    }


async def test_it_goes_on_whatever_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RESTART_SECONDS", 0.0)
    made = Journaled(tmp_path)
    fails = iter([RuntimeError("no reason"), ValueError("none either")])

    async def failing() -> None:
        for error in fails:
            raise error
        made.flushes += 1

    made.following._flush = failing
    (tmp_path / "a.jsonl").write_bytes(line(1))
    with capture_logs() as logs, trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(made.following.run)
            while not made.flushes:  # noqa: ASYNC110  # it tells nobody
                await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
    assert [record["log_level"] for record in logs if record["log_level"] != "info"] == ["error", "error"]
    assert made.held("s_8f2c") == ["e-1"]


def test_nothing_runs_that_was_not_asked_for() -> None:
    relay = Relay(Limits())
    journal = Journal(Config(), relay, trio.lowlevel.checkpoint)
    assert (journal.archive, journal.following, relay.keepers, journal.counts()) == (None, [], [], {})
