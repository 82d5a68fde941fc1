"""The README does as it says: its tour against the installed daemon, its examples, its table of limits."""

from __future__ import annotations

import itertools
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from aep_relay.config import load
from aep_relay.hub.limits import Limits
from tests import patient
from tests.installed import installed

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
TOUR = [
    (text, answer)
    for (kind, text), (next_kind, answer) in itertools.pairwise(BLOCKS)
    if (kind, next_kind) == ("sh", "text")
]
PORT = "8787"


def printed(kind: str) -> list[str]:
    return [text for found, text in BLOCKS if found == kind]


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with installed(tmp_path_factory.mktemp("relay")) as relay:
        yield str(relay.port())
        assert relay.end(signal.SIGTERM) == 0


def test_the_tour_is_found() -> None:
    assert len(TOUR) >= 5
    assert all(PORT in command for command, _ in TOUR)


@pytest.mark.skipif(shutil.which("curl") is None, reason="the tour uses curl")
def test_the_tour(port: str) -> None:
    for command, answer in TOUR:
        done = subprocess.run(
            ["bash", "-c", command.replace(PORT, port)],
            capture_output=True,
            text=True,
            check=True,
            timeout=30,
        )
        assert done.stdout.strip("\n") == answer.strip("\n")


def test_the_program_for_websocket(port: str, tmp_path: Path) -> None:
    posted = TOUR[0][0]
    event = posted.split(" -d '", 1)[1].rsplit("'", 1)[0]
    headers = {"AEP-Version": "0.1", "Content-Type": "application/json"}
    sent = patient.post(f"http://127.0.0.1:{port}/events", content=event, headers=headers)
    assert sent.status_code == 202
    program = tmp_path / "watch.py"
    (shown_program,) = printed("python")
    program.write_text(shown_program.replace(PORT, port))
    with subprocess.Popen([sys.executable, str(program)], stdout=subprocess.PIPE, text=True) as watcher:
        assert watcher.stdout is not None
        lines = iter(watcher.stdout)
        assert next(lines).startswith('{"type":"hello"')
        assert next(lines) == '{"type":"subscribed","id":"mine"}\n'
        assert next(lines) == event + "\n"
        watcher.kill()


def test_the_configuration(tmp_path: Path) -> None:
    file, token = tmp_path / "relay.toml", tmp_path / "token"
    own, chained = printed("toml")
    file.write_text(own)
    token.write_text("abc\n")
    token.chmod(0o600)
    config = load(file, {}, {})
    assert (config.auth.token, config.auth.behind_tls_proxy, config.warnings) == ("abc", True, ())
    file.write_text(chained)
    (link,) = load(file, {}, {}).upstreams
    assert (link.name, link.url, link.mode) == ("hub", "http://127.0.0.1:8787", "push")


def shown(name: str, value: float) -> str:
    if name.endswith("_bytes"):
        return f"{int(value) >> 20} MiB" if value >= 1 << 20 else f"{int(value) >> 10} KiB"
    return f"{value:g} s" if name.endswith("_seconds") else f"{value:,}"


def test_the_table_of_limits() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*?) \|$", README, re.MULTILINE)
    assert rows == [
        (f.name, shown(f.name, getattr(Limits(), f.name)), f.metadata["why"]) for f in fields(Limits)
    ]


def test_the_commands_that_the_checks_take_from_here() -> None:
    for words in ("aep-relay serve", "pytest -n 2"):
        assert len(re.findall(f"^python3 -m venv .*{words}$", README, re.MULTILINE)) == 1
