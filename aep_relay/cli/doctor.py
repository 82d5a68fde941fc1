"""``aep-relay doctor``: what is wrong between here and a relay."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from aep_relay.cli.support import exits
from aep_relay.cli.support.options import Common, relay_options
from aep_relay.cli.support.output import Cell

if TYPE_CHECKING:
    from aep_relay.cli.support.checkup import Checkup
    from aep_relay.cli.support.output import Output

DASHBOARD = "http://localhost:8788"

_STYLES = {"ok": "green", "note": "cyan", "warning": "yellow", "failed": "bold red", "skipped": "dim"}


@click.command("doctor", short_help="Find what is wrong on the way to a relay.", epilog=exits.EPILOG)
@click.option(
    "--origin",
    default=DASHBOARD,
    show_default=True,
    metavar="ORIGIN",
    help="The web page that shall be able to use the relay.",
)
@click.option("--patient", is_flag=True, help="Wait for a heartbeat too, for up to 35 seconds.")
@relay_options
def command(common: Common, origin: str, patient: bool) -> None:
    """Look at a relay from here, and at whatever stands in between.

    \b
    addresses  which of the name's IPv4 and IPv6 addresses answer
    tls        whether the certificate is trusted, and until when
    discovery  whether it is a relay, and what it offers
    versions   whether it speaks this client's protocol, and refuses others
    auth       what the token is good for: emitting, consuming, commands
    cors       whether a web page may use it, and a strange one may not
    clock      how far this clock is from the relay's
    buffering  whether a stream's first byte comes at once, which a proxy
               that buffers prevents; with --patient, heartbeats too
    websocket  whether the upgrade gets through, and hello is answered

    Nothing is emitted. Each finding says what to do about it. The exit code is 0 if nothing failed, warnings or not.

    \b
    Examples:
      aep-relay doctor
      aep-relay doctor --relay https://relay.example.org --token-file token --patient
    """
    from aep_relay.cli.support.checkup import FAILED, Checkup

    checkup = Checkup(common.target(), origin, patient=patient)
    exits.run(checkup.run)
    _show(common.output(), checkup)
    if checkup.failed:
        failed = [finding.check for finding in checkup.findings if finding.level == FAILED]
        code = exits.UNREACHABLE if checkup.is_unreachable else exits.REFUSED
        exits.end(code, f"{checkup.target.url}: failed: {', '.join(dict.fromkeys(failed))}")


def _show(output: Output, checkup: Checkup) -> None:
    if output.json:
        output.document(
            {
                "relay": checkup.target.url,
                "ok": not checkup.failed,
                "findings": [finding.document() for finding in checkup.findings],
            }
        )
    else:
        for finding in checkup.findings:
            output.line(
                Cell(f"{finding.level:<8}", _STYLES[finding.level]), f"{finding.check:<10}", finding.text
            )
            if finding.remedy:
                output.line(" " * 19, Cell(f"remedy: {finding.remedy}", "bold"))
    output.flush()
