"""``aep-relay send``: any command."""

from __future__ import annotations

import click

from aep_relay.cli.support import exits
from aep_relay.cli.support.commands import Sending, sending_options, session_argument
from aep_relay.cli.support.making import parse_data
from aep_relay.protocol.registry import CAPTURES, COMMAND_TYPES


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in sorted(COMMAND_TYPES) if name.startswith(incomplete)]


@click.command("send", short_help="Send any command.", epilog=exits.EPILOG)
@session_argument
@click.argument("type_", metavar="TYPE", shell_complete=_complete)
@click.option("--data", metavar="JSON", help="Its payload, a JSON object.")
@click.option("--subject", metavar="TEXT", help="Its subject.")
@click.option("--run", metavar="NAME", help="The run it is about.")
@click.option("--cause", metavar="ID", help="The id of the Event that it answers.")
@click.option("--capture", type=click.Choice(CAPTURES), help="How much content the payload holds.")
@sending_options
def command(
    sending: Sending,
    session: str,
    type_: str,
    data: str | None,
    subject: str | None,
    run: str | None,
    cause: str | None,
    capture: str | None,
) -> None:
    """Send a command of TYPE to the agent of SESSION, and wait until it is acknowledged.

    A command goes over an authenticated connection only, to the one live connection that claims the session. It is
    sent again with the same id when no acknowledgement comes within the window that the agent declares, so that the
    agent can tell a retry from a second command. It is accepted or rejected by the agent, refused by the relay, or
    times out; `aep-relay roster` shows beforehand what an agent accepts.

    `respond`, `cancel`, `pause` and `resume` make the common ones; this sends vendors' commands, x.VENDOR.control.*,
    too.

    \b
    Examples:
      aep-relay send s-1 control.pause
      aep-relay send s-1 x.acme.control.reload --data '{"what": "rules"}'
    """
    attributes = {
        "subject": subject,
        "run": run,
        "cause": cause,
        "capture": capture,
        "data": parse_data(data),
    }
    sending.send(type_, session, **attributes)
