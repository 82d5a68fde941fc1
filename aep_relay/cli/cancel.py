"""``aep-relay cancel``: control.cancel."""

from __future__ import annotations

import click

from aep_relay.cli.support import exits
from aep_relay.cli.support.commands import Sending, sending_options, session_argument


@click.command("cancel", short_help="Stop an agent's run or session.", epilog=exits.EPILOG)
@session_argument
@click.option(
    "--scope",
    type=click.Choice(["run", "session"]),
    default="run",
    show_default=True,
    help="Cancel the present run, or the whole session.",
)
@click.option("--run", metavar="NAME", help="The run to cancel.")
@click.option("--reason", metavar="TEXT", help="Why; the agent gets to read it.")
@sending_options
def command(sending: Sending, session: str, scope: str, run: str | None, reason: str | None) -> None:
    """Ask the agent of SESSION to stop what it is doing.

    Accepted says that it will; that it has, a run.cancelled or session.ended of it says. See `aep-relay send` for how
    a command is sent.

    \b
    Examples:
      aep-relay cancel s-1 --reason 'wrong branch'
      aep-relay cancel s-1 --scope session
    """
    data = {"scope": scope} if reason is None else {"scope": scope, "reason": reason}
    # What a person types has gone through no redaction, and the label has to say so.
    capture = None if reason is None else "full"
    sending.send("control.cancel", session, run=run, capture=capture, data=data)
