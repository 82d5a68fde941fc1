from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from aep_relay import __version__
from aep_relay.cli import COMMANDS, main


@pytest.fixture
def run() -> CliRunner:
    return CliRunner()


def test_version(run: CliRunner) -> None:
    result = run.invoke(main, ["--version"])
    assert (result.exit_code, result.output) == (0, f"aep-relay {__version__}\n")


def test_help_names_every_command(run: CliRunner) -> None:
    result = run.invoke(main, ["--help"])
    assert result.exit_code == 0
    assert [command for command in COMMANDS if f"  {command} " in result.output] == list(COMMANDS)


@pytest.mark.parametrize("arguments", [["no-such-command"], ["serve", "--no-such-flag"], ["check-config"]])
def test_wrong_usage(arguments: list[str], run: CliRunner) -> None:
    result = run.invoke(main, arguments)
    assert result.exit_code == 2
    assert "Usage" in result.stderr


def test_check_config_of_a_good_file(run: CliRunner, tmp_path: Path) -> None:
    path = tmp_path / "relay.toml"
    path.write_text("[listen]\nport = 0\n")
    result = run.invoke(main, ["check-config", str(path)])
    assert (result.exit_code, result.stdout, result.stderr) == (0, f"{path}: ok\n", "")


def test_check_config_shows_warnings(run: CliRunner, tmp_path: Path) -> None:
    path = tmp_path / "relay.toml"
    path.write_text('[listen]\nhost = "::"\n[auth]\nallow_plain_http = true\n')
    result = run.invoke(main, ["check-config", str(path)], env={"AEP_TOKEN": "abc"})
    assert (result.exit_code, result.stdout) == (0, f"{path}: ok\n")
    assert result.stderr.startswith("warning: auth.allow_plain_http is set")


def test_check_config_of_a_bad_file(run: CliRunner, tmp_path: Path) -> None:
    path = tmp_path / "relay.toml"
    path.write_text("[limits]\nbuffer_event = 1\n")
    result = run.invoke(main, ["check-config", str(path)])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        f"aep-relay: {path}: limits.buffer_event: no such setting; did you mean buffer_events?\n"
    )


def test_check_config_reads_the_certificates_for_upstreams(run: CliRunner, tmp_path: Path) -> None:
    path = tmp_path / "relay.toml"
    path.write_text('[[upstream]]\nname = "hub"\nurl = "https://hub.example.org"\nca_file = "relay.toml"\n')
    result = run.invoke(main, ["check-config", str(path)])
    assert result.exit_code == 2
    assert "upstream hub: its certificates cannot be used" in result.stderr


def test_check_config_sees_the_environment(run: CliRunner, tmp_path: Path) -> None:
    path = tmp_path / "relay.toml"
    path.write_text("")
    result = run.invoke(main, ["check-config", str(path)], env={"AEP_PORT": "x"})
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert result.stderr.startswith("aep-relay: AEP_PORT: ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--port", "65536"], "aep-relay: --port: must be"),
        (["--host", "0.0.0.0"], "aep-relay: listen.host: 0.0.0.0 is not loopback"),
        (["--token-file", "/no/such/file"], "aep-relay: --token-file: /no/such/file cannot be read"),
        (["--config", "/no/such/file"], "aep-relay: /no/such/file: cannot be read"),
    ],
)
def test_serve_refuses_a_bad_configuration(arguments: list[str], message: str, run: CliRunner) -> None:
    result = run.invoke(main, ["serve", *arguments])
    assert result.exit_code == 2
    assert result.stderr.startswith(message)
    assert result.stderr.count("\n") == 1


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_told_in_a_line(tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    file.write_bytes(b"")
    with open("/dev/full", "wb") as full:
        call = [sys.executable, "-m", "aep_relay", "validate", str(file)]
        done = subprocess.run(call, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "aep-relay: No space left on device\n")


def test_the_module_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "aep_relay", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"aep-relay {__version__}\n"


@pytest.mark.parametrize("command", ["--version", "check-config"])
def test_no_server_is_imported_by_commands_that_need_none(command: str, tmp_path: Path) -> None:
    file = tmp_path / "relay.toml"
    file.write_text("")
    script = (
        "import sys\n"
        "from aep_relay.cli import main\n"
        f"main([{command!r}] + {[str(file)] if command == 'check-config' else []!r}, standalone_mode=False)\n"
        "print(sorted({'trio', 'structlog', 'hypercorn', 'quart', 'websockets'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=os.environ
    )
    assert done.stdout.endswith("[]\n")
