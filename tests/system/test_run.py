"""``aep-relay run``: a real process with a relay around it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests import patient
from tests.installed import QUIET
from tests.system.test_journal import eventually

EVENT = (
    '{"aep":"0.1","id":"e-%d","type":"run.started","time":"2026-01-05T09:00:00Z","source":"aep://h",'
    '"agent":"builder","session":"s","seq":%d}'
)
PRELUDE = f"""
import json, os, signal, sys, time
EVENT = {EVENT!r}
def say(number): print(EVENT % (number, number), flush=True)
"""
TOKEN = "a-token-of-tests"
ARCHIVE = '[archive]\nroot = "archive"\n'


class Running:
    """A supervised program."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self.process = process
        self.log = log
        self._port: str | None = None

    def records(self) -> list[dict[str, Any]]:
        found = []
        for line in self.log.read_text().splitlines():
            with contextlib.suppress(ValueError):
                record = json.loads(line)
                # What the process writes itself is there as well.
                if isinstance(record, dict) and "event" in record:
                    found.append(record)
        return found

    @property
    def port(self) -> str:
        if self._port is None:
            eventually(lambda: any(each.get("event") == "listening" for each in self.records()))
            (record,) = [each for each in self.records() if each.get("event") == "listening"]
            self._port = record["addresses"][0].rpartition(":")[2]
        return self._port

    def held(self) -> list[dict[str, Any]]:
        answer = patient.get(
            f"http://127.0.0.1:{self.port}/stream",
            params={"from": "all", "live": "0"},
            headers={"Authorization": f"Bearer {TOKEN}"},
        )
        return [json.loads(found) for found in re.findall("^data: (.*)$", answer.text, re.MULTILINE)]

    def archived(self) -> list[tuple[str, str, Any]]:
        """What was archived of the session: id or type, and the reason it gives."""
        path = self.log.parent / "archive" / "builder" / "s.jsonl"
        events = [json.loads(line) for line in path.read_text().splitlines()]
        return [
            (each["type"], each.get("data", {}).get("reason", ""), each.get("epoch", 0)) for each in events
        ]


@contextlib.contextmanager
def supervised(
    folder: Path, program: str, *options: str, arguments: Sequence[str] = (), archive: str = ARCHIVE
) -> Iterator[Running]:
    config = folder / "relay.toml"
    config.write_text(f'{QUIET}[listen]\nport = 0\n{archive}[auth]\ntoken = "{TOKEN}"\n')
    config.chmod(0o600)
    script = folder / "agent.py"
    script.write_text(PRELUDE + program)
    call = [
        sys.executable,
        "-m",
        "aep_relay",
        "run",
        "--agent",
        "builder",
        "--session",
        "s",
        "--config",
        str(config),
    ]
    log = folder / "stderr"
    with (
        log.open("w") as stderr,
        subprocess.Popen(
            [*call, *options, "--", sys.executable, str(script), *arguments], stderr=stderr, text=True
        ) as process,
    ):
        try:
            yield Running(process, log)
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("program", "code", "reason"),
    [
        ("say(0)", 0, "normal"),
        ("say(0); sys.exit(3)", 3, "error"),
        ("say(0); os.kill(os.getpid(), signal.SIGKILL)", 137, "killed"),
        ("say(0); sys.stdin.close(); os.close(0); sys.exit(3)", 3, "error"),
    ],
)
def test_how_it_ends(program: str, code: int, reason: str, tmp_path: Path) -> None:
    with supervised(tmp_path, program) as running:
        assert running.process.wait(30) == code
    assert running.archived() == [("run.started", "", 0), ("session.ended", reason, 0)]


def test_it_says_the_end_itself(tmp_path: Path) -> None:
    program = "print((EVENT % (0, 0)).replace('run.started', 'session.ended'))"
    with supervised(tmp_path, program) as running:
        assert running.process.wait(30) == 0
    assert running.archived() == [("session.ended", "", 0)]


def call(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "aep_relay", "run", *arguments], capture_output=True, text=True, timeout=30
    )


def test_a_command_that_is_not_there(tmp_path: Path) -> None:
    config = tmp_path / "relay.toml"
    config.write_text(QUIET + "[listen]\nport = 0\n")
    done = call("--config", str(config), "--", str(tmp_path / "nothing"))
    assert done.returncode == 127
    assert "process cannot be started" in done.stderr


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        done = call("--port", str(port), "--", "true")
    assert done.returncode == 2
    problem, advice = done.stderr.splitlines()
    assert problem == f"aep-relay: cannot listen: Address already in use (127.0.0.1:{port})"
    assert "--port 0" in advice
    assert "--relay" in advice


COMMAND = {
    "aep": "0.1", "id": "c-1", "type": "control.cancel", "time": "2026-01-05T09:00:00Z", "source": "aep://me",
    "agent": "me", "session": "s",
}  # fmt: skip

OBEDIENT = """
number = 0
for line in sys.stdin:
    heard = json.loads(line)
    if heard["type"] == "session.opened":
        say(0)
    else:
        answer = json.loads(EVENT % (1, 1))
        answer |= {"type": "control.accepted", "cause": heard["id"], "data": {"heard": heard["type"]}}
        print(json.dumps(answer), flush=True)
"""


def test_commands_reach_it_and_the_roster_shows_it(tmp_path: Path) -> None:
    with supervised(tmp_path, OBEDIENT, "--accepts", "control.cancel") as running:
        url = f"ws://127.0.0.1:{running.port}/socket"
        eventually(lambda: len(running.held()) == 1)
        with patient.connect(url, additional_headers={"Authorization": f"Bearer {TOKEN}"}) as socket:
            frames = [
                {
                    "type": "hello",
                    "versions": ["0.1"],
                    "role": "consumer",
                    "identity": {},
                    "capabilities": {},
                },
                {"type": "roster", "id": "r"},
                {
                    "type": "subscribe",
                    "id": "s",
                    "filter": {"type": ["control.accepted", "control.rejected"]},
                },
                {**COMMAND, "id": "c-0", "type": "control.pause"},
                COMMAND,
            ]
            for frame in frames:
                socket.send(json.dumps(frame))
            assert json.loads(socket.recv(20))["type"] == "hello"
            (entry,) = json.loads(socket.recv(20))["entries"]
            assert (entry["session"], entry["agent"]) == ("s", "builder")
            assert entry["control"] == {"accepts": ["control.cancel"]}
            assert json.loads(socket.recv(20))["type"] == "subscribed"
            refused = json.loads(socket.recv(20))
            assert (refused["cause"], refused["code"]) == ("c-0", "unsupported")
            accepted = json.loads(socket.recv(20))
            assert (accepted["type"], accepted["cause"]) == ("control.accepted", "c-1")
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(30) == 143
    assert running.archived()[-1][:2] == ("session.ended", "killed")


STDIO_AGENT = """
first = json.loads(sys.stdin.readline())
assert (first["type"], first["payload"]["session_id"]) == ("session.opened", "s")
def tell(type_, **payload):
    print(json.dumps({"aep_version": "0.1", "id": type_, "type": type_, "source": "w",
                      "created_at": "2026-01-05T09:00:00Z", "payload": payload}), flush=True)
tell("session.ready", session_id="s", capabilities={})
tell("tool.requested", tool={"name": "Bash"})
sys.stderr.write('{"type":"event.rejected","payload":{"error":{"code":"invalid_envelope"}}}\\nplain text\\n')
tell("task.done", answer=42)
tell("session.closed", session_id="s")
"""


def test_a_process_of_the_stdio_dialect(tmp_path: Path) -> None:
    with supervised(tmp_path, STDIO_AGENT) as running:
        assert running.process.wait(30) == 0
    found = running.archived()
    assert [type_ for type_, _, _ in found] == ["tool.requested", "x.stdio.task.done", "session.ended"]
    assert len({epoch for _, _, epoch in found}) == 1
    assert "plain text\n" in running.log.read_text()
    complaints = [each for each in running.records() if each.get("event") == "process complains"]
    assert [(each["type"], each["code"]) for each in complaints] == [("event.rejected", "invalid_envelope")]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
def test_signals_are_passed_on(number: signal.Signals, tmp_path: Path) -> None:
    program = f"""
signal.signal({int(number)}, lambda *_: sys.exit(7))
say(0)
while True: time.sleep(0.05)
"""
    with supervised(tmp_path, program) as running:
        eventually(lambda: len(running.held()) == 1)
        running.process.send_signal(number)
        assert running.process.wait(30) == 7
    assert running.archived()[-1][:2] == ("session.ended", "error")


def test_it_is_started_again_in_a_new_epoch(tmp_path: Path) -> None:
    program = """
print(json.dumps({"aep_version": "0.1", "id": str(time.time()), "type": "run.started", "source": "w",
                  "created_at": "2026-01-05T09:00:00Z", "payload": {}}))
again = os.path.exists("again")
open("again", "w").close()
sys.exit(0 if again else 1)
"""
    with supervised(tmp_path, f"os.chdir({str(tmp_path)!r})\n{program}", "--restart") as running:
        assert running.process.wait(30) == 0
    found = running.archived()
    assert [each[:2] for each in found] == [
        ("run.started", ""), ("session.ended", "error"), ("run.started", ""), ("session.ended", "normal"),
    ]  # fmt: skip
    assert found[0][2] == found[1][2] < found[2][2] == found[3][2]


def test_a_process_that_writes_much_and_reads_nothing(tmp_path: Path) -> None:
    program = """
out = os.fdopen(1, "wb", 1 << 20)
for number in range(30_000): out.write((EVENT % (number, number)).encode() + b"\\n")
out.flush()
time.sleep(600)
"""
    with supervised(tmp_path, program, "--accepts", "control.cancel") as running:
        url = f"ws://127.0.0.1:{running.port}/socket"
        path = tmp_path / "archive" / "builder" / "s.jsonl"
        eventually(lambda: path.exists() and path.read_bytes().count(b"\n") == 30_000)
        with patient.connect(url, additional_headers={"Authorization": f"Bearer {TOKEN}"}) as socket:
            hello = {
                "type": "hello",
                "versions": ["0.1"],
                "role": "consumer",
                "identity": {},
                "capabilities": {},
            }
            socket.send(json.dumps(hello))
            socket.recv(20)
            note = "x" * 100_000
            for number in range(100):
                socket.send(json.dumps({**COMMAND, "id": f"c-{number}", "data": {"note": note}}))
            refused = json.loads(socket.recv(20))
            assert refused["code"] == "no-route"
        assert running.process.poll() is None
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(30) == 143


FLOOD = r"""
import subprocess
WRITER = r'''
import os
event = (EVENT[:-1] + ',"capture":"full","data":{"text":"' + "x" * (1 << 16) + '"}}').encode()
for number in range(COUNT):
    line = event % (number, number) + b"\n"
    while line: line = line[os.write(1, line) :]
'''.replace("EVENT", repr(EVENT)).replace("COUNT", sys.argv[1])
writer = subprocess.Popen([sys.executable, "-c", WRITER], stdout=subprocess.PIPE)
relay = subprocess.Popen([sys.executable, "-m", "aep_relay", "stdio"], stdin=writer.stdout)
print(relay.pid, file=sys.stderr, flush=True)
writer.stdout.close()
sys.exit(relay.wait())
"""


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs /proc")
def test_a_gigabyte_through_two_pipes_in_bounded_memory(tmp_path: Path) -> None:
    """What ``stdio`` writes is what ``run`` reads: a gigabyte passes through both."""
    count = 1_000_000_000 // (1 << 16) + 1
    peaks: dict[int, int] = {}
    with supervised(tmp_path, FLOOD, arguments=[str(count)], archive="") as running:
        while running.process.poll() is None:
            pids = [int(each) for each in running.log.read_text().splitlines() if each.isdecimal()]
            for pid in (running.process.pid, *pids):
                with contextlib.suppress(OSError):
                    status = Path(f"/proc/{pid}/status").read_text()
                    for kilobytes in re.findall(r"VmHWM:\s+(\d+) kB", status):
                        peaks[pid] = int(kilobytes)
            time.sleep(0.1)
    (ended,) = [each for each in running.records() if each["event"] == "process ended"]
    assert (running.process.returncode, ended["accepted_events"], ended["refused_lines"]) == (0, count, 0)
    assert len(peaks) == 2
    # A session's buffer is 64 MiB, and Python itself takes about half of that.
    assert max(peaks.values()) < 180_000, f"{peaks} kB"


def test_the_relay_is_killed(tmp_path: Path) -> None:
    program = """
say(0)
for line in sys.stdin: pass
open(os.path.join(os.path.dirname(__file__), "gone"), "w").close()
"""
    with supervised(tmp_path, program) as running:
        eventually(lambda: len(running.held()) == 1)
        running.process.kill()
        running.process.wait(30)
        eventually((tmp_path / "gone").exists)


def test_what_it_started_does_not_hold_up_the_end(tmp_path: Path) -> None:
    program = """
import subprocess
say(0)
print(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']).pid, file=sys.stderr, flush=True)
sys.stdout.write(EVENT % (1, 1))
"""
    with supervised(tmp_path, program) as running:
        assert running.process.wait(30) == 0
        (pid,) = [int(each) for each in running.log.read_text().splitlines() if each.isdecimal()]
        os.kill(pid, signal.SIGKILL)  # it is still there
    assert running.archived() == [("run.started", "", 0)] * 2 + [("session.ended", "normal", 0)]


def test_what_is_left_out_is_reported(tmp_path: Path) -> None:
    program = """
say(0)
print()
print((EVENT % (1, 1)).replace('"0.1"', '"0.9"'))
print("hello\\n" * 50, end="")
print((EVENT % (2, 2)).replace('"0.1"', '"0.9"'))
for _ in range(40): print('{"type":"event.rejected","payload":{"error":{"code":"invalid_envelope"}}}', file=sys.stderr)
say(3)
"""
    with supervised(tmp_path, program) as running:
        assert running.process.wait(30) == 0
    records = running.records()
    (skipped,) = [each for each in records if each["event"].endswith("skipped")]
    assert skipped["line"] == 3
    assert "0.9" in skipped["detail"]
    left_out = [each for each in records if each["event"] == "line left out"]
    assert [(each["line"], each["code"]) for each in left_out] == [
        (at, "protocol_error") for at in range(4, 14)
    ]
    assert [each["lines"] for each in records if each["event"] == "more lines left out"] == [40]
    assert len([each for each in records if each["event"] == "process complains"]) == 10
    (ended,) = [each for each in records if each["event"] == "process ended"]
    assert {
        name: ended[name] for name in ("accepted_events", "refused_lines", "skipped_lines", "complaints")
    } == {
        "accepted_events": 2,
        "refused_lines": 50,
        "skipped_lines": 2,
        "complaints": 40,
    }


STUBBORN = """
for number in (signal.SIGINT, signal.SIGTERM): signal.signal(number, lambda *_: say(1))
import subprocess
child = subprocess.Popen(["sleep", "600"])  # says nothing when it ends, not in the midst of a line of the log either
print(child.pid, file=sys.stderr, flush=True)
say(0)
while True: time.sleep(0.05)
"""


@pytest.mark.parametrize(
    ("grace", "signals"),
    [
        ("1", [signal.SIGTERM]),
        ("600", [signal.SIGTERM, signal.SIGTERM]),
        ("600", [signal.SIGINT, signal.SIGTERM]),
    ],
)
def test_who_does_not_end_is_killed(grace: str, signals: Sequence[signal.Signals], tmp_path: Path) -> None:
    path = tmp_path / "archive" / "builder" / "s.jsonl"

    def said(number: int) -> bool:
        return path.exists() and b'"e-%d"' % number in path.read_bytes()

    with supervised(tmp_path, STUBBORN, "--grace", grace, "--restart") as running:
        eventually(lambda: said(0))
        running.process.send_signal(signals[0])
        for number in signals[1:]:
            eventually(lambda: said(1))
            running.process.send_signal(number)
        assert running.process.wait(30) == 137
        (pid,) = [int(each) for each in running.log.read_text().splitlines() if each.isdecimal()]
        eventually(lambda: gone(pid))
    assert running.archived()[-1][:2] == ("session.ended", "killed")
    events = [each["event"] for each in running.records()]
    assert events.count("process is killed") == 1, running.log.read_text()


def gone(pid: int) -> bool:
    """Return whether there is no such process, or nothing of it but what its parent has not taken note of."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_a_hangup_ends_nobody_who_does_not_want_it(tmp_path: Path) -> None:
    program = """
signal.signal(signal.SIGHUP, lambda *_: say(1))
say(0)
while True: time.sleep(0.05)
"""
    with supervised(tmp_path, program, "--grace", "0") as running:
        eventually(lambda: len(running.held()) == 1)
        running.process.send_signal(signal.SIGHUP)
        eventually(lambda: len(running.held()) == 2)
        assert running.process.poll() is None
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(30) in (137, 143)
