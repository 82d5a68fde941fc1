"""``aep-relay tail-files`` as it is installed, against a daemon."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

from tests import patient
from tests.installed import installed
from tests.protocol.samples import MINIMAL, text
from tests.system.test_journal import eventually, held, line

DIALECT = (
    b'{"aep_version":"0.1","id":"d","type":"task.done","source":"w","session_id":"d",'
    b'"created_at":"2026-01-05T09:00:00Z","payload":{}}\n'
)


def arguments(port: int, *more: str) -> list[str]:
    return [sys.executable, "-m", "aep_relay", "tail-files", "--relay", f"http://127.0.0.1:{port}", *more]


def test_what_is_there(tmp_path: Path) -> None:
    command = text(MINIMAL, "seq", type="control.cancel") + b"\n"
    (tmp_path / "a.jsonl").write_bytes(line(0) + b"hello\n" + command + line(1, aep="1.0") + line(2))
    (tmp_path / "b.jsonl").write_bytes(DIALECT)
    with installed(tmp_path) as relay:
        port = relay.port()
        call = arguments(
            port, str(tmp_path / "*.jsonl"), "--once", "--json", "--state", str(tmp_path / "state")
        )
        done = subprocess.run(call, capture_output=True, text=True, timeout=30)
        assert (done.returncode, json.loads(done.stdout)) == (3, {"accepted": 3, "refused": 3})
        records = [json.loads(each) for each in done.stderr.splitlines() if each.startswith("{")]
        at = len(line(0))
        assert [(each["event"], each.get("offset")) for each in records] == [
            ("files found", None),
            ("line left out", at),
            ("line left out", at + 6),
            ("lines of a version that is not supported are skipped", at + 6 + len(command)),
        ]
        assert "Traceback" not in done.stderr
        assert {(each["id"], each["type"]) for each in held(relay, port)} == {
            ("e-0", MINIMAL["type"]),
            ("e-2", MINIMAL["type"]),
            ("d", "x.stdio.task.done"),
        }
        again = subprocess.run(call, capture_output=True, text=True, timeout=30)
        assert (again.returncode, json.loads(again.stdout)) == (0, {"accepted": 0, "refused": 0})


def test_there_is_no_file(tmp_path: Path) -> None:
    done = subprocess.run(
        arguments(1, str(tmp_path / "*.jsonl"), "--once"), capture_output=True, text=True, timeout=30
    )
    assert (done.returncode, done.stdout) == (2, "0 Events accepted\n")
    assert "no file matches" in done.stderr


def test_it_waits_for_a_relay_that_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(line(0))
    with installed(tmp_path) as relay:
        port = relay.port()
        assert relay.end(signal.SIGTERM) == 0
    state = tmp_path / "state"
    call = arguments(port, str(tmp_path / "*.jsonl"), "--state", str(state))
    with subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        with installed(tmp_path, arguments=["--port", str(port)]) as relay:
            relay.port()
            eventually(lambda: len(held(relay, port)) == 1)
            with path.open("ab") as file:
                file.write(line(1)[:40])
            with path.open("ab") as file:
                file.write(line(1)[40:])
            eventually(lambda: len(held(relay, port)) == 2)
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=20)
            assert (process.returncode, out) == (143, "2 Events accepted\n")
            assert json.loads(state.read_text())[0]["offset"] == len(line(0) + line(1))
            assert patient.get(f"http://127.0.0.1:{port}/healthz").json()["ok"]
        assert "Traceback" not in err
