from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator

import pytest
import structlog

from aep_relay import logs, stderr
from aep_relay.ops.metrics import Exposition
from aep_relay.ops.observer import Observer
from aep_relay.stderr import HeldStream, Outlet
from tests.ops.observed import Observation
from tests.stuck import StuckPipe

PATIENCE_SECONDS = 30.0


@pytest.fixture
def stuck() -> Iterator[StuckPipe]:
    with StuckPipe() as pipe:
        yield pipe


def lines_of(outlet: Outlet, pipe: StuckPipe) -> list[bytes]:
    """Read all that an outlet has for a pipe."""
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append(pipe.rest()))
    # Its own end is kept until all is out.
    written, pipe.writing = pipe.writing, os.dup(pipe.writing)
    reader.start()
    assert outlet.finish(PATIENCE_SECONDS)
    os.close(written)
    reader.join(PATIENCE_SECONDS)
    return found[0].splitlines()


def test_nobody_waits_and_nothing_is_lost_or_reordered(stuck: StuckPipe) -> None:
    outlet = Outlet(stuck.writing)
    lines = [b"%d %s" % (number, b"x" * (number % 300)) for number in range(5000)]
    for line in lines:
        outlet.write(line + b"\n")
    assert not outlet.finish(0.01)
    assert lines_of(outlet, stuck) == lines
    assert outlet.lost_lines == 0


def test_what_does_not_fit_is_told_in_its_place(stuck: StuckPipe) -> None:
    outlet = Outlet(stuck.writing, 10_000)
    lines = [b"%099d" % number for number in range(250)]
    for line in lines:
        outlet.write(line + b"\n")
    assert outlet.lost_lines == 150
    assert lines_of(outlet, stuck) == [*lines[:100], b"aep-relay: 150 lines could not be written here"]


def test_it_goes_on_after_a_loss(stuck: StuckPipe) -> None:
    outlet = Outlet(stuck.writing, 10_000)
    for _ in range(101):
        outlet.write(b"%099d\n" % 0)
    found = b""
    while b"written here\n" not in found:
        found += os.read(stuck.reading, 4096)
    outlet.write(b"again\n")
    assert outlet.finish(PATIENCE_SECONDS)
    assert os.read(stuck.reading, 4096).endswith(b"again\n")


def test_more_in_one_write_than_may_be_held_is_told_at_once(stuck: StuckPipe) -> None:
    outlet = Outlet(stuck.writing, 1000)
    outlet.write(b"%0999d\n" % 0 + b"one more\n")
    outlet.write(b"again\n")
    assert lines_of(outlet, stuck) == [b"aep-relay: 2 lines could not be written here", b"again"]


def test_it_goes_on_after_a_loss_and_then_a_descriptor_that_cannot_be_written_to(
    monkeypatch: pytest.MonkeyPatch, stuck: StuckPipe
) -> None:
    write, may_end, broken = os.write, threading.Event(), True

    def refuse(descriptor: int, data: bytes) -> int:
        assert may_end.wait(PATIENCE_SECONDS)
        if broken:
            raise OSError("no space left")
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", refuse)
    os.read(stuck.reading, 1 << 20)
    outlet = Outlet(stuck.writing, 1000)
    for _ in range(11):
        outlet.write(b"%099d\n" % 0)
    may_end.set()
    assert outlet.finish(PATIENCE_SECONDS)
    assert outlet.lost_lines == 11
    broken = False
    outlet.write(b"again\n")
    assert outlet.finish(PATIENCE_SECONDS)
    assert os.read(stuck.reading, 4096).lstrip(b".").splitlines() == [
        b"again", b"aep-relay: 11 lines could not be written here",
    ]  # fmt: skip


def test_the_loss_is_a_record_of_the_log_at_any_level(stuck: StuckPipe) -> None:
    stream = HeldStream(stuck.writing, "utf-8", 10_000)
    logs.configure("error", "json", stream)
    try:
        log = structlog.get_logger()
        for number in range(300):
            log.error("one of many", number=number)
    finally:
        structlog.reset_defaults()
    *numbered, loss = map(json.loads, lines_of(stream.outlet, stuck))
    kept = [record["number"] for record in numbered]
    assert kept == list(range(len(kept)))
    assert (loss["event"], loss["records"], loss["level"]) == ("log records lost", 300 - len(kept), "error")
    assert 0 < loss["records"] == stream.outlet.lost_lines


def test_a_descriptor_that_cannot_be_written_to_and_then_can(tmp_path: os.PathLike[str]) -> None:
    path = os.path.join(tmp_path, "log")
    descriptor = os.open(path, os.O_RDONLY | os.O_CREAT)
    outlet = Outlet(descriptor)
    outlet.write(b"one\ntwo\n")
    assert outlet.finish(PATIENCE_SECONDS)
    assert outlet.lost_lines == 2
    writable = os.open(path, os.O_WRONLY)
    os.dup2(writable, descriptor)
    outlet.write(b"three\n")
    assert outlet.finish(PATIENCE_SECONDS)
    os.close(descriptor)
    os.close(writable)
    with open(path) as file:
        assert file.read() == "three\naep-relay: 2 lines could not be written here\n"


def test_a_line_that_broke_off_is_ended_before_the_next(
    monkeypatch: pytest.MonkeyPatch, stuck: StuckPipe
) -> None:
    write = os.write
    taken = iter([3, None])

    def full(descriptor: int, data: bytes) -> int:
        size = next(taken, len(data))
        if size is None:
            raise OSError("no space left")
        return write(descriptor, data[:size])

    monkeypatch.setattr(os, "write", full)
    os.read(stuck.reading, 4096)
    outlet = Outlet(stuck.writing)
    outlet.write(b"broken\n")
    assert outlet.finish(PATIENCE_SECONDS)
    outlet.write(b"whole\n")
    assert outlet.finish(PATIENCE_SECONDS)
    assert os.read(stuck.reading, 4096).lstrip(b".").splitlines() == [
        b"bro", b"whole", b"aep-relay: 1 lines could not be written here",
    ]  # fmt: skip


def test_a_descriptor_that_others_made_non_blocking(stuck: StuckPipe) -> None:
    os.set_blocking(stuck.writing, False)
    outlet = Outlet(stuck.writing)
    outlet.write(b"x" * 10_000 + b"\n")
    assert not outlet.finish(0.01)
    assert lines_of(outlet, stuck) == [b"x" * 10_000]


def test_it_is_a_text_stream_like_the_one_it_replaces(stuck: StuckPipe) -> None:
    stream = HeldStream(stuck.writing, "ascii")
    print("grün", file=stream)
    assert (stream.fileno(), stream.isatty(), stream.encoding) == (stuck.writing, False, "ascii")
    assert lines_of(stream.outlet, stuck) == [b"gr\\xfcn"]


async def test_the_loss_is_a_metric(stuck: StuckPipe, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = HeldStream(stuck.writing, "utf-8", 10)
    monkeypatch.setattr(sys, "stderr", stream)
    stream.write("one\ntwo\nthree\n")
    text, _ = await Exposition(Observer(Observation())).render("")
    assert b"\naep_relay_log_records_lost_total 3.0\n" in text


def test_a_standard_error_of_somebody_elses_making_stays(capsys: pytest.CaptureFixture[str]) -> None:
    before = sys.stderr
    assert before is not sys.__stderr__
    stderr.install()
    assert sys.stderr is before
    assert (stderr.finish(), stderr.lost_lines()) == (True, 0)
