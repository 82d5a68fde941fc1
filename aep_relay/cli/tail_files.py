"""``aep-relay tail-files``: JSONL files, as they are written, into a relay."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from aep_relay import stderr
from aep_relay.cli.support import exits
from aep_relay.cli.support.options import Common, relay_options
from aep_relay.protocol.registry import CAPTURES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aep_relay.cli.support.output import Output


@click.command("tail-files", short_help="Follow files and send their Events.", epilog=exits.EPILOG)
@click.argument("patterns", metavar="PATTERN...", nargs=-1, required=True)
@click.option("--state", metavar="FILE", type=click.Path(), help="Remember there how far each file was read.")
@click.option("--agent", metavar="NAME", help="Who emits lines of the stdio dialect.  [else whom they name]")
@click.option("--ceiling", type=click.Choice(CAPTURES), default="metadata", show_default=True,
              help="The most content that lines of the stdio dialect bring in.")  # fmt: skip
@click.option("--once", is_flag=True, help="Send what is there and end.")
@relay_options
def command(
    common: Common, patterns: Sequence[str], state: str | None, agent: str | None, ceiling: str, once: bool
) -> None:
    """Follow the files that match each PATTERN and send their Events to the relay, until a signal ends it.

    Files are read from their start, and followed through rotation, truncation and replacement; new ones are found. *,
    ? and [] match within a name, ** matches folders: put patterns in quotes. With --state it goes on where it was.
    Lines with aep_version are of the stdio dialect, and are mapped. A line that is no Event is reported and left out.

    \b
    Examples:
      aep-relay tail-files '/var/log/agents/**/*.jsonl' --state /var/lib/agents.state
      aep-relay tail-files session.jsonl --once
    """
    from aep_relay import logs
    from aep_relay.cli.support.shipping import Shipper
    from aep_relay.config import Capture
    from aep_relay.config.capturing import adapter
    from aep_relay.hub.limits import Limits
    from aep_relay.journal.following import Reading
    from aep_relay.journal.tail import Tail

    stderr.install()
    output = common.output()
    target = common.target()
    logs.configure("info", "auto", sys.stderr, [target.token] if target.token else [])
    max_event_bytes = Limits().max_event_bytes
    reading = Reading(agent, adapter(Capture(ceiling=ceiling)), max_event_bytes)
    tail = Tail([os.path.abspath(each) for each in patterns], state, max_line_bytes=max_event_bytes)
    shipper = Shipper(target, reading)
    try:
        exits.run(lambda: shipper.once(tail) if once else shipper.follow(tail))
    finally:
        left_out = reading.refused_lines + reading.skipped_lines
        _tell(output, shipper.accepted, left_out)
    if left_out:
        exits.end(exits.REFUSED, f"{left_out} lines were left out")


def _tell(output: Output, accepted: int, left_out: int) -> None:
    if output.json:
        output.document({"accepted": accepted, "refused": left_out})
    else:
        output.line(f"{accepted} Events accepted" + (f", {left_out} lines left out" if left_out else ""))
    output.flush()
