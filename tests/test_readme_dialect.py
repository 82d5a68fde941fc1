"""The README says of the stdio dialect and of the commands for pipes and files what the code does."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from aep_relay import cli
from aep_relay.protocol import dialect

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
SECTION = README.split("\n## Pipes and files\n", 1)[1].split("\n## ", 1)[0]
COMMANDS = re.findall(r"aep-relay .*", "".join(re.findall(r"^```sh\n(.*?)^```$", SECTION, re.M | re.S)))


def test_the_mapping_is_the_one_that_is_implemented() -> None:
    said = [line for line in SECTION.splitlines() if line.startswith("|")]
    done = [line.replace("``", "`") for line in str(dialect.__doc__).splitlines() if line.startswith("|")]
    assert said == done
    assert len(said) > 10


@pytest.mark.parametrize("text", COMMANDS)
def test_the_commands_parse(text: str) -> None:
    words = shlex.split(text.partition(" > ")[0])
    command = cli.main.get_command(
        cli.main.make_context("aep-relay", ["--"], resilient_parsing=True), words[1]
    )
    assert command is not None
    assert command.make_context(words[1], words[2:]).params


def test_there_are_commands() -> None:
    assert {text.split()[1] for text in COMMANDS} == {"run", "stdio", "tail-files"}
