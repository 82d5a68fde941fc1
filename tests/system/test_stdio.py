"""``aep-relay stdio`` as a process at the end of a pipe."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from tests import patient
from tests.installed import QUIET
from tests.protocol.samples import MINIMAL, text
from tests.protocol.test_intake import STDIO
from tests.system.test_journal import HEADERS, line

OPENED = (
    text(STDIO, "session_id", type="session.opened", payload={"session_id": "p", "version": "0.1"}) + b"\n"
)


@contextlib.contextmanager
def process(*arguments: str, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    call = [sys.executable, "-m", "aep_relay", "stdio", *arguments]
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    # What could not be written any more must not fail when its pipe is closed.
    with contextlib.suppress(BrokenPipeError), subprocess.Popen(call, **streams) as running:
        try:
            yield running
        finally:
            running.kill()


def run(given: bytes, *arguments: str) -> tuple[int, list[Any], list[Any]]:
    """Return the exit code, and what was written to standard output and to standard error."""
    with process(*arguments) as running:
        out, err = running.communicate(given, timeout=30)
        return running.returncode, [json.loads(each) for each in out.splitlines()], said(err)


def said(err: bytes) -> list[Any]:
    return [json.loads(each) for each in err.splitlines()]


def stream(found: IO[bytes] | None) -> IO[bytes]:
    assert found is not None
    return found


def test_events_pass_untouched() -> None:
    events = [line(0), line(1), line(2, severity="error")]
    with process() as running:
        out, err = running.communicate(events[0] + b"\r\n\n" + events[1][:-1] + b"\r\n" + events[2][:-1], 30)
    assert (running.returncode, out, err) == (0, b"".join(events), b"")


def test_the_life_of_a_session() -> None:
    code, out, err = run(OPENED + text(STDIO) + b"\n" + line(1))
    assert code == 0
    assert [each["type"] for each in out] == ["session.ready", "task.done", MINIMAL["type"], "session.closed"]
    assert all(each["aep_version"] == "0.1" for each in out)
    assert (out[0]["payload"]["session_id"], err) == ("p", [])


def test_the_dialect_of_the_output_can_be_chosen() -> None:
    _, out, _ = run(line(1), "--dialect", "stdio")
    assert [(each["aep_version"], each["id"]) for each in out] == [("0.1", "e-1")]


def test_filter_and_capture() -> None:
    full = {"capture": "full", "data": {"tool": {"name": "Bash"}, "args": {"command": "ls"}}}
    given = line(0, severity="debug") + line(1, severity="error", type="tool.requested", **full)
    _, out, _ = run(given, "--filter", '{"severity":{"gte":"notice"}}', "--capture", "metadata")
    assert [(each["id"], each["data"]) for each in out] == [("e-1", {"tool": {"name": "Bash"}})]


@pytest.mark.parametrize("arguments", [["--filter", '{"time":"x"}'], ["--from", "x"]])
def test_wrong_usage(arguments: list[str]) -> None:
    with process(*arguments) as running:
        out, err = running.communicate(b"", 30)
    assert (running.returncode, out) == (2, b"")
    assert b"Usage" in err


def test_what_is_no_event_is_rejected_and_reading_goes_on(tmp_path: Path) -> None:
    config = tmp_path / "relay.toml"
    config.write_text(
        QUIET + "[listen]\nport = 0\n[limits]\nmax_event_bytes = 1024\n[log]\nlevel = 'error'\n"
    )
    command = text(MINIMAL, "seq", id="c", type="control.cancel") + b"\n"
    given = b"hello\n" + b"x" * 5_000_000 + b"\n" + command + line(1, aep="7.0") + line(2)
    code, out, err = run(given, "--config", str(config))
    assert (code, [each["id"] for each in out]) == (0, ["e-2"])
    assert [(each["type"], each["payload"]["error"]["code"]) for each in err] == [
        ("event.rejected", "protocol_error"),
        ("event.rejected", "invalid_envelope"),
        ("event.rejected", "unauthorized"),
        ("event.rejected", "unsupported_version"),
    ]
    assert err[2]["payload"]["event_id"] == "c"
    assert [each["payload"]["error"]["details"]["line"] for each in err] == [1, 2, 3, 4]


def test_a_broken_pipe_ends_it_quietly() -> None:
    with process() as running:
        stdin, stdout = stream(running.stdin), stream(running.stdout)
        stdin.write(OPENED)
        stdin.flush()
        assert b"session.ready" in stdout.readline()
        stdout.close()
        with contextlib.suppress(BrokenPipeError):
            while running.poll() is None:
                stdin.write(line(1))
                stdin.flush()
        assert running.wait(30) == 0
        assert stream(running.stderr).read() == b""


def test_the_other_side_closes_the_session() -> None:
    with process() as running:
        stdin = stream(running.stdin)
        stdin.write(OPENED + text(STDIO, type="session.closed", payload={"session_id": "p"}) + b"\n")
        stdin.flush()
        assert running.wait(30) == 0
        assert len(stream(running.stdout).read().splitlines()) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_session_in_order(number: signal.Signals) -> None:
    with process() as running:
        stdin, stdout = stream(running.stdin), stream(running.stdout)
        stdin.write(OPENED)
        stdin.flush()
        assert b"session.ready" in stdout.readline()
        running.send_signal(number)
        assert running.wait(30) == 0
        closed = json.loads(stdout.read())
        assert (closed["type"], closed["payload"]["reason"]) == ("session.closed", "shutdown")


def test_nobody_reads_standard_error() -> None:
    with process() as running:
        stdin = stream(running.stdin)
        stdin.write(b"hello\n" * 8_000 + line(1))
        stdin.close()
        assert json.loads(stream(running.stdout).readline())["id"] == "e-1"
        assert running.wait(30) == 0


def test_others_take_part_over_the_data_port(tmp_path: Path) -> None:
    config = tmp_path / "relay.toml"
    config.write_text(QUIET + "[listen]\nport = 0\n")
    with process("--config", str(config)) as running:
        stdin, stdout, stderr = stream(running.stdin), stream(running.stdout), stream(running.stderr)
        port = json.loads(stderr.readline())["addresses"][0].rpartition(":")[2]
        url = f"http://127.0.0.1:{port}"
        patient.post(f"{url}/events", headers=HEADERS, content=line(5))
        assert json.loads(stdout.readline())["id"] == "e-5"
        stdin.write(line(6))
        stdin.flush()
        assert json.loads(stdout.readline())["id"] == "e-6"
        answer = patient.get(f"{url}/stream", params={"from": "all", "live": "0"}).text
        assert re.findall("^id: (.*)$", answer, re.MULTILINE) == ["s_8f2c:0:5", "s_8f2c:0:6"]
        stdin.close()
        assert running.wait(30) == 0
        assert stdout.read() == b""


@pytest.mark.parametrize(
    ("moment", "end"),
    [("before", "stdout"), ("before", "all"), ("opened", "stdin"), ("opened", "stderr"), ("opened", "all")],
)
def test_pipes_closed_at_any_moment(moment: str, end: str) -> None:
    with process() as running:
        ends = {"stdin": running.stdin, "stdout": running.stdout, "stderr": running.stderr}
        if moment == "opened":
            stream(running.stdin).write(OPENED)
            stream(running.stdin).flush()
            stream(running.stdout).readline()
        for name, each in ends.items():
            if end in (name, "all"):
                stream(each).close()
        with contextlib.suppress(BrokenPipeError, ValueError):
            stream(running.stdin).write(b"hello\n" + line(1))
            stream(running.stdin).close()
        assert running.wait(30) == 0
        if end not in ("stderr", "all"):
            assert b"Traceback" not in stream(running.stderr).read()


def redirected(redirection: str, given: bytes, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    """Run it with standard streams as a shell makes them."""
    call = ["sh", "-c", f'exec "$@" {redirection}', "sh", sys.executable, "-m", "aep_relay", *arguments]
    return subprocess.run(call, input=given, capture_output=True, timeout=30)


@pytest.mark.parametrize(
    ("redirection", "out"), [("<&-", b""), (">&-", b""), ("2>&-", line(1)), ("<&- >&- 2>&-", b"")]
)
def test_standard_streams_that_are_not_there(redirection: str, out: bytes) -> None:
    done = redirected(redirection, line(1), "stdio", "--port", "0")
    assert (done.returncode, done.stdout) == (0, out)
    assert b"Traceback" not in done.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_no_broken_pipe() -> None:
    done = redirected(">/dev/full", line(1), "stdio")
    (error,) = said(done.stderr)
    assert (done.returncode, error["payload"]["error"]["message"]) == (
        1,
        "standard output: No space left on device",
    )


def test_a_signal_ends_it_although_nobody_reads() -> None:
    with process() as running:
        stdin = stream(running.stdin)
        for number in range(300):
            stdin.write(line(number, data={"text": "x" * 1000}, capture="full"))
        stdin.flush()
        running.send_signal(signal.SIGTERM)
        assert running.wait(30) == 0
