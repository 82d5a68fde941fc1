from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from aep_relay.journal import state
from aep_relay.journal import tail as module
from aep_relay.journal.tail import Source, Tail
from aep_relay.protocol.jsonl import OverlongLine, Placed


class Following:
    """A ``Tail`` with its clock in hand, and what it has handed on."""

    def __init__(self, folder: Path, *patterns: str, state: bool = True, **options: str) -> None:
        self.folder = folder
        self.time = 0.0
        self.lines: list[tuple[str, object]] = []
        self.offsets: list[int] = []
        self.options = options
        self.patterns = [str(folder / pattern) for pattern in patterns or ("*.jsonl",)]
        self.state = str(folder / "state" / "tail.json") if state else None
        self.restart()

    def restart(self) -> None:
        """Begin anew, as after a crash: nothing is stopped in order."""
        self.tail = Tail(self.patterns, self.state, max_line_bytes=100, now=lambda: self.time, **self.options)
        self.started = False

    async def accept(self, source: Source, lines: Sequence[Placed]) -> None:
        self.lines += [(os.path.basename(source.path), line.text) for line in lines]
        self.offsets += [line.offset for line in lines]

    def look(self, seconds: float = 1.0) -> list[tuple[str, object]]:
        """Let ``seconds`` pass, look until there is nothing more, and return the lines since the last look."""

        async def looking() -> None:
            if not self.started:
                await self.tail.start()
                self.started = True
            self.time += seconds
            while await self.tail.turn(self.accept):
                pass
            self.time += 1.0
            await self.tail.turn(self.accept)

        trio.run(looking)
        found, self.lines = self.lines, []
        return found


PATIENCE_SECONDS = 30.0


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what a worker does, on a clock that may jump meanwhile."""
    while not condition():
        await trio.to_thread.run_sync(threading.Event().wait, 0.001)


@pytest.fixture
def follow(tmp_path: Path) -> Iterator[Following]:
    following = Following(tmp_path)
    yield following
    following.tail.stop()


def write(path: Path, text: str | bytes, mode: str = "ab") -> None:
    with path.open(mode) as file:
        file.write(text.encode() if isinstance(text, str) else text)


def problems(logs: Sequence[Any]) -> list[Any]:
    """What is logged but for what was found."""
    return [record for record in logs if record["log_level"] != "info"]


def of(name: str, *lines: str) -> list[tuple[str, object]]:
    return [(name, line.encode()) for line in lines]


def test_what_is_there_and_what_comes(follow: Following, tmp_path: Path) -> None:
    a, b = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    write(a, "1\n2\n")
    assert follow.look() == of("a.jsonl", "1", "2")
    write(a, "3\n")
    write(b, "x\n")
    write(tmp_path / "c.log", "no\n")
    assert sorted(follow.look(), key=str) == of("a.jsonl", "3") + of("b.jsonl", "x")
    assert follow.look() == []


def test_folders_within_folders(tmp_path: Path) -> None:
    follow = Following(tmp_path, "logs/**/*.jsonl", "logs/*/s.jsonl")
    (tmp_path / "logs" / "agent").mkdir(parents=True)
    write(tmp_path / "logs" / "agent" / "s.jsonl", "1\n")
    assert follow.look() == of("s.jsonl", "1")
    follow.tail.stop()


def test_a_torn_line_waits_for_its_end(follow: Following, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    write(path, "1\n{to")
    assert follow.look() == of("a.jsonl", "1")
    write(path, "rn")
    assert follow.look() == []
    write(path, "}\r\n3")
    assert follow.look() == of("a.jsonl", "{torn}")


def test_a_torn_line_that_is_taken_back(follow: Following, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    write(path, "1\n{to")
    follow.look()
    os.truncate(path, 2)
    assert follow.look() == []
    write(path, "22\n")
    assert follow.look() == of("a.jsonl", "22")


def test_it_resumes_where_it_was(follow: Following, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    write(path, "1\n2\n{to")
    follow.look()
    follow.restart()
    write(path, "rn}\n")
    assert follow.look() == of("a.jsonl", "{torn}")
    follow.restart()
    path.rename(tmp_path / "z.jsonl")
    write(tmp_path / "z.jsonl", "4\n")
    assert follow.look() == of("z.jsonl", "4")


def test_offsets_count_from_the_start_of_the_file(follow: Following, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    write(path, "one\r\n\ntwo\nthr")
    follow.look()
    follow.restart()
    write(path, "ee\n")
    follow.look()
    write(path, "four\n")
    follow.look()
    write(path, "x\n", "wb")
    follow.look()
    assert follow.offsets == [0, 6, 10, 16, 0]


def test_what_is_found_is_said(follow: Following, tmp_path: Path) -> None:
    with capture_logs() as logs:
        follow.look()
        follow.look()
        write(tmp_path / "a.jsonl", "1\n")
        follow.look()
        follow.restart()
        follow.look()
    assert [(record["log_level"], record["event"]) for record in logs] == [
        ("warning", "no file matches yet"),
        ("info", "file found"),
        ("info", "files found"),
    ]
    assert (logs[0]["patterns"], logs[2]["files"]) == ((str(tmp_path / "*.jsonl"),), 1)


def test_without_a_state_it_begins_at_the_start(tmp_path: Path) -> None:
    follow = Following(tmp_path, state=False)
    write(tmp_path / "a.jsonl", "1\n")
    follow.look()
    follow.restart()
    assert follow.look() == of("a.jsonl", "1")
    follow.tail.stop()


def test_what_was_not_accepted_is_not_remembered(follow: Following, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    write(path, "1\n")
    follow.look()
    write(path, "2\n")
    accept, follow.accept = follow.accept, None  # type: ignore[assignment]  # it fails
    with pytest.raises(TypeError):
        follow.look()
    follow.tail.stop()
    follow.restart()
    follow.accept = accept  # type: ignore[method-assign]
    assert follow.look() == of("a.jsonl", "2")


def test_rotation_by_name(follow: Following, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    write(path, "1\n")
    follow.look()
    write(path, "2\n")
    path.rename(tmp_path / "a.jsonl.1")
    write(path, "new\n")
    assert follow.look() == of("a.jsonl", "2", "new")
    write(tmp_path / "a.jsonl.1", "late\n{torn}")
    assert follow.look() == of("a.jsonl", "late")
    assert follow.look(10.0) == of("a.jsonl", "{torn}")
    assert follow.tail.files == 1


def test_rotation_to_a_name_that_is_followed_too(tmp_path: Path) -> None:
    follow = Following(tmp_path, "a.jsonl*")
    write(tmp_path / "a.jsonl", "1\n")
    follow.look()
    (tmp_path / "a.jsonl").rename(tmp_path / "a.jsonl.1")
    write(tmp_path / "a.jsonl", "2\n")
    assert follow.look() == of("a.jsonl", "2")
    assert follow.look(20.0) == []
    follow.tail.stop()


@pytest.mark.parametrize("text", ["n\n", "new, and longer than before\n"])
def test_truncation_and_writing_anew(text: str, follow: Following, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    write(path, "111\n222\n")
    follow.look()
    write(path, text, "wb")
    assert follow.look() == of("a.jsonl", text.strip())


def test_a_rewritten_file_is_known_by_its_start_after_a_crash_too(follow: Following, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    write(path, "111\n222\n")
    follow.look()
    follow.restart()
    write(path, "other\nlines\nthan before\n", "wb")
    assert follow.look() == of("a.jsonl", "other", "lines", "than before")


def test_atomic_replacement(follow: Following, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    write(path, "1\n")
    follow.look()
    write(tmp_path / "next", "2\n3\n")
    (tmp_path / "next").replace(path)
    assert follow.look() == of("a.jsonl", "2", "3")
    assert follow.look(20.0) == []
    assert follow.tail.files == 1


def test_a_line_that_is_too_long(follow: Following, tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", "x" * 1_000_000 + "\n2\n")
    assert follow.look() == [("a.jsonl", OverlongLine(100)), ("a.jsonl", b"2")]


def test_a_folder_that_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "archive").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "archive")
    write(tmp_path / "archive" / "s.jsonl", "1\n")
    write(tmp_path / "archived.jsonl", "2\n")
    follow = Following(tmp_path, "**/*.jsonl", excluded=str(tmp_path / "link"))
    assert follow.look() == of("archived.jsonl", "2")
    follow.tail.stop()


def test_what_is_no_regular_file_is_not_opened(follow: Following, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.jsonl")
    (tmp_path / "b.jsonl").mkdir()
    (tmp_path / "c.jsonl").symlink_to(tmp_path / "nothing")
    assert follow.look() == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_reported_once(follow: Following, tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", "1\n")
    (tmp_path / "a.jsonl").chmod(0)
    with capture_logs() as logs:
        follow.look()
        follow.look()
    assert [record["event"] for record in problems(logs)] == ["file cannot be read"]


def test_too_many_files(follow: Following, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_FILES", 2)
    for name in "abc":
        write(tmp_path / f"{name}.jsonl", f"{name}\n")
    with capture_logs() as logs:
        assert len(follow.look()) == 2
    assert [record["event"] for record in problems(logs)] == ["too many files to follow"]


def test_a_busy_file_does_not_starve_the_others(
    follow: Following, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "READ_BYTES", 4)
    monkeypatch.setattr(module, "LOOK_BYTES", 4)
    write(tmp_path / "a.jsonl", "1\n" * 20)
    write(tmp_path / "b.jsonl", "2\n" * 4)
    names = [name for name, _ in follow.look()]
    assert names.index("b.jsonl") == 2
    assert len(names) == 24


@pytest.mark.parametrize(
    "text",
    ["", "[", "{}", '[{"path":1}]', '[{"inode":1}]', "[" * 100_000, "\xff"],
    ids=lambda text: text[:20],
)
def test_a_state_that_cannot_be_read(text: str, follow: Following, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "tail.json").write_text(text, encoding="latin-1")
    write(tmp_path / "a.jsonl", "1\n")
    with capture_logs() as logs:
        assert follow.look() == of("a.jsonl", "1")
    assert len(problems(logs)) == 1
    entries = json.loads((tmp_path / "state" / "tail.json").read_text())
    assert [(entry["path"], entry["offset"]) for entry in entries] == [(str(tmp_path / "a.jsonl"), 2)]
    assert os.listdir(tmp_path / "state") == ["tail.json"]


def test_a_state_that_cannot_be_written_is_no_reason_to_stop(follow: Following, tmp_path: Path) -> None:
    (tmp_path / "state").write_text("in the way")
    write(tmp_path / "a.jsonl", "1\n")
    with capture_logs() as logs:
        assert follow.look() == of("a.jsonl", "1")
        write(tmp_path / "a.jsonl", "2\n")
        assert follow.look() == of("a.jsonl", "2")
    assert [record["log_level"] for record in problems(logs)] == ["warning", "error"]


STEPS = st.lists(
    st.tuples(st.just("write"), st.text("ab\n", max_size=6))
    | st.tuples(st.sampled_from(["rotate", "replace", "look", "crash"]), st.just("")),
    max_size=25,
)


@settings(max_examples=25)
@given(STEPS)
def test_no_line_is_lost_and_none_comes_twice(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, str]]
) -> None:
    """Whatever happens to the file, as long as it is looked at before it goes out of sight."""
    folder = tmp_path_factory.mktemp("tail")
    path, follow = folder / "a.jsonl", Following(folder)
    written, found, number = b"", b"", 0
    for step, text in steps:
        if step == "write":
            # Each line is another one, so that a file begins like no other.
            for piece in text.splitlines(keepends=True):
                number += 1
                line = f"{number}{piece}".encode()
                written += line
                write(path, line)
            continue
        found += b"".join(bytes(str(line), "ascii") + b"\n" for _, line in follow.look())
        if step == "crash":
            follow.restart()
        elif path.exists() and step in ("rotate", "replace"):
            write(path, "\n")
            written += b"\n"
            found += b"".join(bytes(str(line), "ascii") + b"\n" for _, line in follow.look())
            if step == "rotate":
                path.rename(folder / f"old-{number}-{len(written)}")
            else:
                path.unlink()
    write(path, "end\n")
    written += b"end\n"
    found += b"".join(bytes(str(line), "ascii") + b"\n" for _, line in follow.look())
    follow.tail.stop()
    expected = [repr(line).encode() for line in written.split(b"\n") if line.strip()]
    assert found.splitlines() == expected


async def test_what_was_read_is_saved_in_a_worker_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_the_loop: list[bool] = []
    lines: list[Placed] = []

    def seen(*arguments: Any) -> None:
        on_the_loop.append(threading.current_thread() is threading.main_thread())
        state.save(*arguments)

    async def accept(_: Source, more: Sequence[Placed]) -> None:
        lines.extend(more)

    monkeypatch.setattr(module, "save", seen)
    path, saved = tmp_path / "a.jsonl", tmp_path / "state.json"
    write(path, "one\n")
    # By its own clock no time passes: it saves once and then at the end.
    tail = Tail([str(path)], str(saved), max_line_bytes=100, now=lambda: 0.0)
    with trio.fail_after(PATIENCE_SECONDS):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tail.run, accept)
            await until(lambda: bool(on_the_loop))
            write(path, "two\n")
            await until(lambda: len(lines) == 2)
            nursery.cancel_scope.cancel()
    assert on_the_loop == [False, False]
    assert [entry["offset"] for entry in json.loads(saved.read_bytes())] == [8]
    assert tail.files == 0


@pytest.mark.parametrize("hanging", ["save", "look"])
async def test_a_disk_that_hangs_holds_up_no_end(
    hanging: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    begun, may_go_on = threading.Event(), threading.Event()

    async def accept(_: Source, __: Sequence[Placed]) -> None:
        await trio.lowlevel.checkpoint()

    def hang(*_: object) -> None:
        begun.set()
        assert may_go_on.wait(PATIENCE_SECONDS)

    if hanging == "save":
        monkeypatch.setattr(module, "save", hang)
    else:
        monkeypatch.setattr(Tail, "_scan", hang)
    write(tmp_path / "a.jsonl", "one\n")
    tail = Tail([str(tmp_path / "a.jsonl")], str(tmp_path / "state.json"), max_line_bytes=100)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tail.run, accept)
            await until(begun.is_set)
            cancelled_at = trio.current_time()
            nursery.cancel_scope.cancel()
        assert trio.current_time() - cancelled_at <= module.FINISH_SECONDS
    finally:
        may_go_on.set()
    # What was under way is finished before the files are closed.
    await until(lambda: tail.files == 0 and not tail._alone.locked())
