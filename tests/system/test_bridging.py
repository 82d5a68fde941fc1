"""``stdio`` and ``run`` as clients of a running relay."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import patient
from tests.installed import QUIET, Installed, installed
from tests.system.test_journal import eventually, line
from tests.system.test_run import COMMAND, OBEDIENT, PRELUDE, TOKEN, Running
from tests.system.test_stdio import OPENED, process, stream


@pytest.fixture
def relay(tmp_path: Path) -> Iterator[Installed]:
    with installed(tmp_path, QUIET, AEP_TOKEN=TOKEN) as running:
        yield running


@pytest.fixture
def token(tmp_path: Path) -> str:
    path = tmp_path / "token"
    path.write_text(TOKEN)
    path.chmod(0o600)
    return str(path)


def seen(port: int) -> Running:
    """The relay's Events by the means of another test."""
    running = Running.__new__(Running)
    running._port = str(port)
    return running


def test_a_pipe_to_a_running_relay(relay: Installed, token: str) -> None:
    port = relay.port()
    url = f"http://127.0.0.1:{port}"
    with process("--relay", url, "--token-file", token, "--from", "all") as one:
        stream(one.stdin).write(line(0) + b"hello\n")
        stream(one.stdin).flush()
        assert json.loads(stream(one.stdout).readline())["id"] == "e-0"
        eventually(lambda: len(seen(port).held()) == 1)
        with process("--relay", url, "--token-file", token, "--from", "all") as other:
            assert json.loads(stream(other.stdout).readline())["id"] == "e-0"
            out, _ = other.communicate(line(1), 30)
            assert (other.returncode, [json.loads(each)["id"] for each in out.splitlines()]) == (0, ["e-1"])
        assert json.loads(stream(one.stdout).readline())["id"] == "e-1"
        out, err = one.communicate(line(2), 30)
    assert (one.returncode, len(out.splitlines())) == (0, 1)
    assert [json.loads(each)["type"] for each in err.splitlines()] == ["event.rejected"]
    assert [each["id"] for each in seen(port).held()] == ["e-0", "e-1", "e-2"]


def test_much_at_once_arrives_whole(relay: Installed, token: str) -> None:
    port = relay.port()
    given = b"".join(line(number, data={"x": "y" * 1000}, capture="full") for number in range(5000))
    with process(
        "--relay", f"http://127.0.0.1:{port}", "--token-file", token, "--filter", '{"type":"error.*"}'
    ) as running:
        out, err = running.communicate(given, 60)
    assert (running.returncode, out, err) == (0, b"", b"")
    assert len(seen(port).held()) == 5000


@pytest.mark.parametrize("arguments", [["--port", "1"], ["--host", "::1"]])
def test_either_a_relay_or_a_port(arguments: list[str]) -> None:
    with process("--relay", "http://127.0.0.1:1", *arguments) as running:
        _, err = running.communicate(b"", 30)
    assert running.returncode == 2
    assert b"Usage" in err


def test_a_relay_that_is_not_there() -> None:
    with process("--relay", "http://127.0.0.1:1") as running:
        _, err = running.communicate(line(0), 30)
    assert running.returncode == 5
    assert b"cannot be reached" in err
    assert b"Traceback" not in err


def test_a_relay_that_goes_away_ends_the_session(relay: Installed, token: str) -> None:
    url = f"http://127.0.0.1:{relay.port()}"
    with process("--relay", url, "--token-file", token) as running:
        stream(running.stdin).write(OPENED + line(0))
        stream(running.stdin).flush()
        assert b"session.ready" in stream(running.stdout).readline()
        assert b"e-0" in stream(running.stdout).readline()
        relay.end(signal.SIGKILL)
        assert running.wait(30) == 5
        found = [json.loads(each) for each in stream(running.stderr).read().splitlines()]
        assert "session.error" in [each.get("type") for each in found]


def test_a_relay_that_refuses_ends_the_process(relay: Installed) -> None:
    call = [sys.executable, "-m", "aep_relay", "run", "--relay", f"http://127.0.0.1:{relay.port()}", "--"]
    call += ["sh", "-c", "echo $$ >&2; exec sleep 600"]
    done = subprocess.run(
        call, capture_output=True, text=True, timeout=30, env={**os.environ, "AEP_TOKEN": "wrong"}
    )
    assert done.returncode == 3
    assert "unauthorized" in done.stderr
    for pid in [int(each) for each in done.stderr.splitlines() if each.isdecimal()]:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_process_with_a_running_relay(relay: Installed, token: str, tmp_path: Path) -> None:
    port = relay.port()
    script = tmp_path / "agent.py"
    script.write_text(PRELUDE + OBEDIENT)
    call = [
        sys.executable,
        "-m",
        "aep_relay",
        "run",
        "--agent",
        "builder",
        "--session",
        "s",
        "--token-file",
        token,
    ]
    call += [
        "--accepts",
        "control.cancel",
        "--relay",
        f"http://127.0.0.1:{port}",
        "--",
        sys.executable,
        str(script),
    ]
    with subprocess.Popen(call, stderr=subprocess.PIPE) as running:
        eventually(lambda: len(seen(port).held()) == 1)
        header = {"Authorization": f"Bearer {TOKEN}"}
        with patient.connect(f"ws://127.0.0.1:{port}/socket", additional_headers=header) as socket:
            hello = {
                "type": "hello",
                "versions": ["0.1"],
                "role": "consumer",
                "identity": {},
                "capabilities": {},
            }
            subscribe = {"type": "subscribe", "id": "s", "filter": {"type": "control.accepted"}}
            for frame in (hello, {"type": "roster", "id": "r"}, subscribe, COMMAND):
                socket.send(json.dumps(frame))
            socket.recv(20)
            (entry,) = json.loads(socket.recv(20))["entries"]
            assert (entry["session"], entry["agent"], entry["control"]) == (
                "s",
                "builder",
                {"accepts": ["control.cancel"]},
            )
            socket.recv(20)
            assert json.loads(socket.recv(20))["cause"] == "c-1"
        running.send_signal(signal.SIGTERM)
        assert running.wait(30) == 143
        assert b"Traceback" not in stream(running.stderr).read()
    assert [each["type"] for each in seen(port).held()] == [
        "run.started",
        "control.cancel",
        "control.accepted",
        "session.ended",
    ]


def test_an_outage_is_survived_and_the_claim_renewed(token: str, tmp_path: Path) -> None:
    script = tmp_path / "agent.py"
    script.write_text(PRELUDE + "say(0)\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.05)\nsay(1)\n")
    with installed(tmp_path, QUIET, AEP_TOKEN=TOKEN) as first:
        port = first.port()
        call = [sys.executable, "-m", "aep_relay", "run", "--session", "s", "--token-file", token]
        call += [
            "--relay",
            f"http://127.0.0.1:{port}",
            "--",
            sys.executable,
            str(script),
            str(tmp_path / "go"),
        ]
        running = subprocess.Popen(call, stderr=subprocess.DEVNULL)
        eventually(lambda: len(seen(port).held()) == 1)
        first.end(signal.SIGKILL)
    try:
        with installed(tmp_path, QUIET, ["--port", str(port)], AEP_TOKEN=TOKEN) as second:
            second.port()
            eventually(lambda: [each["id"] for each in seen(port).held()] == ["e-0"])
            (tmp_path / "go").touch()
            assert running.wait(30) == 0
            assert [each["type"] for each in seen(port).held()] == [
                "run.started",
                "run.started",
                "session.ended",
            ]
    finally:
        running.kill()
        running.wait()
