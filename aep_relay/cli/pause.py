"""``aep-relay pause``: control.pause."""

from __future__ import annotations

import click

from aep_relay.cli.support import exits
from aep_relay.cli.support.commands import Sending, sending_options, session_argument


@click.command("pause", short_help="Have an agent pause.", epilog=exits.EPILOG)
@session_argument
@click.option("--run", metavar="NAME", help="The run it is about.")
@sending_options
def command(sending: Sending, session: str, run: str | None) -> None:
    """Ask the agent of SESSION to pause its work.

    What that means is the agent's matter: accepted says that it will, and its Events say what it does. See
    `aep-relay send` for how a command is sent.

    \b
    Examples:
      aep-relay pause s-1
      aep-relay pause s-1 --window 2 --json
    """
    sending.send("control.pause", session, run=run)
