from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aep_relay.journal.files import LineFiles

Make = Callable[..., LineFiles]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[LineFiles] = []

    def build(max_open_files: int = 8, max_file_bytes: int = 0) -> LineFiles:
        made.append(LineFiles(str(tmp_path), max_open_files=max_open_files, max_file_bytes=max_file_bytes))
        return made[-1]

    yield build
    for files in made:
        files.close()


@pytest.fixture
def descriptors() -> Callable[[], int]:
    return lambda: len(os.listdir("/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"))


def test_lines_are_appended_to_what_is_there(make: Make, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "s").write_bytes(b"0\n")
    files = make()
    assert files.append("a/s", [b"1\n", b"2\n"]) == 2
    assert files.append("a/s", [b"3\n"]) == 1
    assert (tmp_path / "a" / "s").read_bytes() == b"0\n1\n2\n3\n"


def test_a_line_is_one_write(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[bytes] = []
    write = os.write

    def spy(descriptor: int, data: bytes) -> int:
        writes.append(data)
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", spy)
    line = b"x" * 1_000_000 + b"\n"
    make().append("s", [line])
    assert writes == [line]


def test_few_files_are_open(make: Make, tmp_path: Path, descriptors: Callable[[], int]) -> None:
    files, before = make(max_open_files=3), descriptors()
    for number in range(20):
        files.append(f"{number % 10}", [b"%d\n" % number])
    assert descriptors() - before == 3
    assert (tmp_path / "4").read_bytes() == b"4\n14\n"
    files.close()
    assert descriptors() == before


def test_a_line_that_a_crash_cut_off_is_ended(make: Make, tmp_path: Path) -> None:
    (tmp_path / "s").write_bytes(b'{"a":1}\n{"b"')
    make().append("s", [b"1\n"])
    assert (tmp_path / "s").read_bytes() == b'{"a":1}\n{"b"\n1\n'


def test_a_full_file_is_set_aside(make: Make, tmp_path: Path) -> None:
    files = make(max_file_bytes=10)
    assert (
        files.append("s.jsonl", [b"1234567\n", b"8\n", b"9\n", b"longer than a file may be\n", b"0\n"]) == 5
    )
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        "s.jsonl.1": b"1234567\n8\n",
        "s.jsonl.2": b"9\n",
        "s.jsonl.3": b"longer than a file may be\n",
        "s.jsonl": b"0\n",
    }


def test_what_was_moved_away_is_not_written_to(make: Make, tmp_path: Path) -> None:
    files = make()
    files.append("a/s", [b"1\n"])
    (tmp_path / "a" / "s").rename(tmp_path / "moved")
    files.append("a/s", [b"2\n"])
    (tmp_path / "a" / "s").unlink()
    (tmp_path / "a").rmdir()
    files.append("a/s", [b"3\n"])
    assert ((tmp_path / "moved").read_bytes(), (tmp_path / "a" / "s").read_bytes()) == (b"1\n", b"3\n")


@pytest.mark.parametrize(("taken", "kept"), [(0, 0), (1, 0), (2, 1), (3, 1), (5, 2)])
def test_no_half_line_stays_on_a_full_disk(
    taken: int, kept: int, make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = make()
    files.append("s", [b"0\n"])
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:taken]))
    assert files.append("s", [b"1\n", b"2\n", b"3\n"]) == kept
    assert (tmp_path / "s").read_bytes() == b"0\n1\n2\n"[: 2 + 2 * kept]


def test_a_disk_that_takes_nothing(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = make()

    def full(descriptor: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space"):
            files.append("s", [b"1\n"])
    assert files.append("s", [b"1\n"]) == 1
    assert (tmp_path / "s").read_bytes() == b"1\n"


def test_a_file_size_limit_of_the_system(make: Make, tmp_path: Path) -> None:
    files = make()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (15, hard))
    try:
        assert files.append("s", [b"123456789\n", b"123456789\n"]) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (tmp_path / "s").read_bytes() == b"123456789\n"


def test_a_link_in_place_of_a_file_is_not_followed(make: Make, tmp_path: Path) -> None:
    (tmp_path / "s").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError):  # noqa: PT011  # its text is the system's
        make().append("s", [b"1\n"])
    assert not (tmp_path / "elsewhere").exists()
