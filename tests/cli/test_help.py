"""Every command explains itself: what it does, how it ends, and what to type."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from aep_relay.cli import COMMANDS, main

OF_A_RELAY = (
    "tail", "emit", "roster", "send", "respond", "cancel", "pause", "resume", "timeline", "replay", "doctor",
)  # fmt: skip
HERE = (*OF_A_RELAY, "validate", "demo", "completion")


@pytest.mark.parametrize("name", HERE)
def test_help_reads_like_a_manual(name: str) -> None:
    result = CliRunner().invoke(main, [name, "--help"], terminal_width=100)
    assert result.exit_code == 0
    assert len(result.output.split("Options:")[0].split()) > 25
    assert "Examples:" in result.output or name == "completion"
    if name != "completion":
        assert "Exit codes:" in result.output
    if name in OF_A_RELAY:
        assert "AEP_RELAY" in result.output
        assert "AEP_TOKEN" in result.output


@pytest.mark.parametrize("name", [name for name in HERE if name != "completion"])
def test_the_examples_can_be_typed(name: str) -> None:
    """Every option and argument of an example is one that the command takes."""
    text = CliRunner().invoke(main, [name, "--help"], terminal_width=200).output
    examples = re.findall(
        r"^ +((?:.* \| )?aep-relay .*)$", text.split("Examples:")[1].split("Options:")[0], re.MULTILINE
    )
    assert len(examples) >= 2
    typed = [
        part.split("aep-relay ", 1)[1]
        for line in examples
        for part in line.split(" | ")
        if "aep-relay " in part
    ]
    for line in typed:
        words = shlex.split(line.split(" >")[0])
        command = main.get_command(click.Context(main), words[0])
        assert command is not None
        command.make_context(words[0], words[1:])


def test_the_main_help_lists_the_exit_codes() -> None:
    text = CliRunner().invoke(main, ["--help"]).output
    assert re.findall(r"^ {4}(\d+) ", text, re.MULTILINE) == ["0", "2", "3", "4", "5", "130"]


def test_no_short_help_is_cut() -> None:
    text = CliRunner().invoke(main, ["--help"], terminal_width=80).output
    listed = dict(re.findall(r"^  (\S+)  +(.+)$", text.split("Commands:")[1], re.MULTILINE))
    assert list(listed) == list(COMMANDS)
    assert [name for name in COMMANDS if listed[name].endswith("...")] == []


@pytest.mark.parametrize(
    ("shell", "words"), [("bash", "complete -o"), ("zsh", "compdef"), ("fish", "complete ")]
)
def test_completion(shell: str, words: str) -> None:
    result = CliRunner().invoke(main, ["completion", shell])
    assert result.exit_code == 0
    assert words in result.output
    assert "_AEP_RELAY_COMPLETE" in result.output


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("aep-relay rep", ["replay"]),
        ("aep-relay tail --type attention.re", ["attention.requested", "attention.resolved"]),
        ("aep-relay tail --severity w", ["warning"]),
        ("aep-relay completion ", ["bash", "zsh", "fish"]),
        ("aep-relay send s control.p", ["control.pause"]),
    ],
)
def test_what_is_completed(typed: str, found: list[str]) -> None:
    words = typed.split(" ")
    env = {"_AEP_RELAY_COMPLETE": "bash_complete", "COMP_WORDS": typed, "COMP_CWORD": str(len(words) - 1)}
    result = CliRunner().invoke(main, prog_name="aep-relay", env=env, args=[])
    assert [line.split(",")[1] for line in result.output.splitlines()] == found


def test_help_needs_no_server_and_no_client() -> None:
    script = (
        "import sys\n"
        "from click.testing import CliRunner\n"
        "from aep_relay.cli import main\n"
        "assert CliRunner().invoke(main, ['--help']).exit_code == 0\n"
        "print(sorted({'trio', 'structlog', 'hypercorn', 'quart', 'trio_websocket', 'rich'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_readme_names_every_command_and_exit_code() -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    section = readme.split("## Command line\n", 1)[1].split("\n## ", 1)[0]
    assert [name for name in HERE if f"`{name}" not in section and f"aep-relay {name}" not in section] == []
    assert re.findall(r"^\| (\d+) \|", section, re.MULTILINE) == ["0", "2", "3", "4", "5", "130"]
