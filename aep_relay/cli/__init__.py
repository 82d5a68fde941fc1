"""The command line: one module per command, imported when its command is used.

Importing a server's libraries takes longer than most commands run, so the group only knows the commands'
names, and what the commands share is in ``support``. Exit codes: 0 done, 2 for what has to be put right here (usage,
configuration, an address that can't be had), with one line on standard error; commands that talk to a relay know
more of them, see ``support.exits``.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import NoReturn

import click

from aep_relay import __version__

# In the order in which help lists them. The module has the command's name with underscores, and holds
# the click command as ``command``.
COMMANDS = (
    "serve",
    "check-config",
    "token",
    "tail",
    "emit",
    "roster",
    "send",
    "respond",
    "cancel",
    "pause",
    "resume",
    "timeline",
    "validate",
    "replay",
    "doctor",
    "demo",
    "tail-files",
    "stdio",
    "run",
    "completion",
)


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"aep_relay.cli.{cmd_name.replace('-', '_')}")
        command: click.Command = module.command
        return command


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="aep-relay", message="%(prog)s %(version)s")
def main() -> None:
    """A relay for the Agent Event Protocol, and what to do with one. `demo` is the shortest way to see it all.

    Commands that talk to a relay find it by --relay or AEP_RELAY, and their token by --token-file or AEP_TOKEN.

    \b
    Exit codes:
      0    done
      2    usage, or a configuration that has to be put right
      3    refused, with the reason on standard error
      4    timed out
      5    unreachable
      130  interrupted
    """
    _open_standard_streams()


def _open_standard_streams() -> None:
    """Put the null device in place of standard streams that the process was started without.

    Else what is opened next, a socket say, would have their numbers, and get what is written to them.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            # The lowest number that is free is this one.
            os.open(os.devnull, os.O_RDWR)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", encoding="utf-8", closefd=False))  # noqa: SIM115


def fail(message: object) -> NoReturn:
    """End with exit code 2 and one line on standard error."""
    line = " ".join(str(message).split())
    click.echo(f"aep-relay: {line}", err=True)
    raise SystemExit(2)
