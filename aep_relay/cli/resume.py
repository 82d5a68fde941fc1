"""``aep-relay resume``: control.resume."""

from __future__ import annotations

import click

from aep_relay.cli.support import exits
from aep_relay.cli.support.commands import Sending, sending_options, session_argument


@click.command("resume", short_help="Have an agent go on.", epilog=exits.EPILOG)
@session_argument
@click.option("--run", metavar="NAME", help="The run it is about.")
@sending_options
def command(sending: Sending, session: str, run: str | None) -> None:
    """Ask the agent of SESSION to go on after a pause.

    What that means is the agent's matter: accepted says that it will, and its Events say what it does. See
    `aep-relay send` for how a command is sent.

    \b
    Examples:
      aep-relay resume s-1
      aep-relay resume s-1 --window 2 --json
    """
    sending.send("control.resume", session, run=run)
