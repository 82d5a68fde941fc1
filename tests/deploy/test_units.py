"""The systemd units: valid, well sandboxed, and in step with what the relay does."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from aep_relay.config import Config, Listen, load
from aep_relay.hub.limits import Limits

UNITS = Path(__file__).parents[2] / "deploy" / "systemd"
ANALYZE = shutil.which("systemd-analyze")
needs_analyze = pytest.mark.skipif(ANALYZE is None, reason="there is no systemd-analyze")

INSTALLED = "/opt/aep-relay/bin/aep-relay"


def settings(unit: str) -> Iterator[tuple[str, str]]:
    for line in (UNITS / unit).read_text().splitlines():
        if "=" in line and not line.startswith("#"):
            name, _, value = line.partition("=")
            yield name, value


SERVICE = dict(settings("aep-relay.service"))


@pytest.fixture
def units(tmp_path: Path) -> list[str]:
    """Return copies of the units, for a machine on which the relay is installed where this Python is."""
    program = Path(sys.executable).with_name("aep-relay")
    for name in ("aep-relay.service", "aep-relay.socket"):
        text = (UNITS / name).read_text()
        (tmp_path / name).write_text(text.replace(INSTALLED, str(program)))
    return [str(path) for path in sorted(tmp_path.iterdir())]


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(ANALYZE), *arguments], capture_output=True, text=True, timeout=60, check=False)


@needs_analyze
def test_they_are_valid(units: list[str]) -> None:
    done = analyze("verify", "--man=no", *units)
    # What it does not know, it only complains about.
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@needs_analyze
def test_the_sandbox_is_rated_below_two(units: list[str]) -> None:
    done = analyze("security", "--offline=true", "--no-pager", "--threshold=19", units[0])
    assert done.returncode == 0, done.stdout
    rated = re.search(r"Overall exposure level for aep-relay\.service: ([0-9.]+)", done.stdout)
    assert rated
    assert float(rated[1]) < 2.0


def test_the_socket_unit_listens_where_the_relay_does_by_itself() -> None:
    streams = [value for name, value in settings("aep-relay.socket") if name == "ListenStream"]
    listen = Listen()
    assert streams[:2] == [f"{listen.host}:{listen.port}", f"[::1]:{listen.port}"]
    # The service's own folder goes whenever it stops, and a socket in it would go with it.
    assert not any(stream.startswith(f"/run/{SERVICE['RuntimeDirectory']}/") for stream in streams)


def test_the_service_gives_the_relay_the_time_and_the_descriptors_it_takes() -> None:
    limits = Limits()
    assert int(SERVICE["TimeoutStopSec"]) > limits.drain_timeout_seconds + limits.closing_timeout_seconds
    assert int(SERVICE["LimitNOFILE"]) > limits.max_connections
    assert SERVICE["Type"] == "notify"


def test_the_commands_of_the_service_are_accepted(tmp_path: Path) -> None:
    """Check and start use the same file and token; the hub's configuration goes with them."""
    shutil.copy(UNITS.parents[1] / "config" / "hub.toml", tmp_path / "relay.toml")
    (tmp_path / "credential").write_text("abc\n")
    (tmp_path / "credential").chmod(0o400)
    command = SERVICE["ExecStartPre"].replace("%d/token", str(tmp_path / "credential"))
    command = command.replace("/etc/aep-relay/relay.toml", str(tmp_path / "relay.toml"))
    program, *arguments = command.split()
    assert program == INSTALLED
    checked = subprocess.run(
        [sys.executable, "-m", "aep_relay", *arguments], capture_output=True, text=True, check=False
    )
    assert (checked.returncode, checked.stderr) == (0, "")
    started = SERVICE["ExecStart"].split()
    assert started == [
        INSTALLED,
        "serve",
        "--config",
        "/etc/aep-relay/relay.toml",
        "--token-file",
        "%d/token",
    ]
    config = load(tmp_path / "relay.toml", {}, {"--token-file": str(tmp_path / "credential")})
    assert isinstance(config, Config)
    assert config.auth.token == "abc"


def test_the_readme_installs_what_the_unit_says() -> None:
    (unit, readme) = (
        [line.removeprefix("#   ") for line in text.splitlines()]
        for text in ((UNITS / "aep-relay.service").read_text(), (UNITS.parents[1] / "README.md").read_text())
    )
    first, last = (
        next(number for number, line in enumerate(unit) if line.startswith(words))
        for words in ("python3 -m venv /opt/aep-relay", "systemctl daemon-reload")
    )
    assert 3 < last - first < 10
    assert [line for line in readme if line in unit[first : last + 1]] == unit[first : last + 1]
