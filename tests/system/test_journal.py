"""The archive and followed files of the installed daemon, and what a redacting relay lets through."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

from tests import patient
from tests.installed import Installed, installed
from tests.protocol.samples import MINIMAL, text

CONFIG = """
[operator]
port = 0
[archive]
root = "archive"
max_file_bytes = 2000
[[tail]]
patterns = ["logs/*.jsonl"]
state = "state.json"
[capture]
redact = true
hide_names = ["QUINCE"]
"""
PATIENCE_SECONDS = 60.0
HEADERS = {"AEP-Version": "0.1", "Content-Type": "application/x-ndjson"}


def line(number: int, **changes: object) -> bytes:
    return text(MINIMAL, id=f"e-{number}", seq=number, **changes) + b"\n"


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def held(relay: Installed, port: int, **parameters: str) -> list[dict[str, object]]:
    url = f"http://127.0.0.1:{port}/stream"
    answer = patient.get(url, params={"from": "all", "live": "0", **parameters})
    return [json.loads(found) for found in re.findall("^data: (.*)$", answer.text, re.MULTILINE)]


def test_from_file_to_file_across_a_crash(tmp_path: Path) -> None:
    log, archived = tmp_path / "logs" / "a.jsonl", tmp_path / "archive" / "claude-code" / "s_8f2c.jsonl"
    log.parent.mkdir()
    log.write_bytes(b"".join(line(number) for number in range(20)) + line(20)[:50])
    with installed(tmp_path, CONFIG) as relay:
        port = relay.port()
        eventually(lambda: len(held(relay, port)) == 20)
        eventually(lambda: (tmp_path / "state.json").exists())
        relay.end(signal.SIGKILL)
    first = sorted(archived.parent.iterdir())
    assert len(first) > 1, "rotated"
    with log.open("ab") as file:
        file.write(line(20)[50:])
    with installed(tmp_path, CONFIG) as relay:
        port = relay.port()
        patient.post(f"http://127.0.0.1:{port}/events", headers=HEADERS, content=line(99))
        eventually(lambda: {each["id"] for each in held(relay, port)} == {"e-20", "e-99"})
        assert relay.end(signal.SIGTERM) == 0
    everything = b"".join(path.read_bytes() for path in archived.parent.iterdir())
    ids = sorted(int(json.loads(each)["id"][2:]) for each in everything.splitlines())
    assert ids == [*range(21), 99]


def test_a_redacting_relay_keeps_redacted_text(tmp_path: Path) -> None:
    event = line(
        1,
        type="attention.requested",
        capture="full",
        data={"kind": "input", "prompt": "May I use hunter-two, token=abcdefgh? ada@example.org asks"},
    )
    for config, capture, prompt in (
        (CONFIG, "redacted", "May I use [REDACTED:secret], token=[REDACTED:secret] [REDACTED:pii] asks"),
        ("[operator]\nenabled = false\n", "metadata", "claude-code requests input"),
    ):
        with installed(tmp_path, config, QUINCE="hunter-two") as relay:
            port = relay.port()
            patient.post(f"http://127.0.0.1:{port}/events", headers=HEADERS, content=event)
            (found,) = held(relay, port, capture="redacted")
            assert found["capture"] == capture
            assert found["data"] == {"kind": "input", "prompt": prompt}
            (untouched,) = held(relay, port)
            assert untouched == json.loads(event)
            assert relay.end(signal.SIGTERM) == 0


def test_another_archive_and_other_files_are_taken_over(tmp_path: Path) -> None:
    others = tmp_path / "others" / "b.jsonl"
    others.parent.mkdir()
    others.write_bytes(line(1))
    changed = CONFIG.replace('"archive"', '"other"').replace("logs/", "others/").replace("true", "false")
    with installed(tmp_path, CONFIG) as relay:
        port = relay.port()
        (tmp_path / "relay.toml").write_text(changed)
        relay.process.send_signal(signal.SIGHUP)
        record = relay.record("configuration reloaded")
        assert record["changed"] == ["archive.root", "tail"]
        assert record["needs_restart"] == ["capture.redact"]
        eventually(lambda: len(held(relay, port)) == 1)
        assert relay.end(signal.SIGTERM) == 0
    assert (tmp_path / "other" / "claude-code" / "s_8f2c.jsonl").read_bytes() == line(1)
    assert not (tmp_path / "archive").exists()
