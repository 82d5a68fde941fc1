"""Hostile lines, where Events come in without a network: a pipe, and a file that is followed.

They are those of ``test_json``, and what only a line can be: too long, without an end, of no text at all.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import quote

from tests.hardening.client import Stream, event
from tests.hardening.inside import PATIENCE_SECONDS
from tests.hardening.outside import outside
from tests.hardening.test_json import INVALID

MIB = 1 << 20
LINES = [
    *(text.replace(b"\n", b" ") for text in INVALID.values()),
    b"\0" * 1000,
    b"\x1b[2J\x1b]0;title\x07",
    b"\xff\xfe" + "{}".encode("utf-16-le"),
    b"{",
    b"x" * (5 * MIB),
    event(session="json")[:-1] + b',"subject":"' + b"x" * (5 * MIB) + b'"}',
]
GOOD = [event(seq, "good") for seq in range(len(LINES) + 1)]
FED = b"".join(good + b"\n" + bad + b"\n" for good, bad in zip(GOOD, LINES, strict=False)) + GOOD[-1]


def test_a_pipe() -> None:
    """Each good line comes out, in order and as it was; each other one is reported, once."""
    done = subprocess.run(
        [sys.executable, "-m", "aep_relay", "stdio"], input=FED, capture_output=True, timeout=120, check=False
    )
    assert done.stdout.splitlines() == GOOD
    reports = [json.loads(line) for line in done.stderr.splitlines()]
    assert [report["type"] for report in reports] == ["event.rejected"] * len(LINES)
    for report, bad in zip(reports, LINES, strict=True):
        error = report["payload"]["error"]
        assert error["code"] in ("invalid_envelope", "protocol_error", "invalid_event_type"), (
            bad[:80],
            error,
        )
        assert error["message"].isprintable()
        assert len(error["message"]) <= 400
    assert done.returncode == 0


def test_a_followed_file(tmp_path: Path) -> None:
    """What is good in it is relayed, a line without its end waits, and nobody else notices."""
    file = tmp_path / "hostile.jsonl"
    file.write_bytes(FED[:-1])
    with outside(tmp_path, f'[[tail]]\npatterns = ["{file}"]\n') as relay:
        query = "?live=0&from=all&filter=" + quote('{"session":["good","json"]}')

        def held(count: int) -> list[bytes]:
            deadline = time.monotonic() + PATIENCE_SECONDS
            found: list[bytes] = []
            while len(found) < count and time.monotonic() < deadline:
                with Stream(relay.port, query) as stream:
                    found = [
                        block.rpartition(b"data: ")[2] for block in stream.blocks() if b"data: " in block
                    ]
            return found

        assert held(len(GOOD) - 1) == GOOD[:-1]
        with file.open("ab") as end:
            end.write(FED[-1:] + b"\n")
        assert held(len(GOOD)) == GOOD
        assert relay.health["ok"]
        reported = [record for record in relay.records() if "left out" in record["event"]]
        assert 1 <= len(reported) <= len(LINES)
        assert all(record["detail"].isprintable() for record in reported)
