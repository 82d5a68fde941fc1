"""``aep-relay roster``: who can be commanded."""

from __future__ import annotations

from typing import Any

import click

from aep_relay.cli.support import exits
from aep_relay.cli.support.options import Common, relay_options
from aep_relay.cli.support.output import Cell, Output


@click.command("roster", short_help="List who can be commanded.", epilog=exits.EPILOG)
@relay_options
def command(common: Common) -> None:
    """List the sessions that live connections claim, and what commands each accepts.

    A session that is not listed has no connection that a command could go to, whatever is held of its history. One
    that is listed twice is claimed twice, and the relay refuses commands to it as ambiguous. A relay that pulls passes
    commands on for sessions that it has from upstream: those stand in the roster of the relay up there.

    \b
    Examples:
      aep-relay roster
      aep-relay roster --json | jq -r '.entries[].session'
    """
    from aep_relay.client.socket import open_socket

    target, output = common.target(), common.output()

    async def show() -> None:
        async with open_socket(target) as socket:
            entries = await socket.roster()
        if output.json:
            output.document({"entries": entries})
        elif entries:
            _table(output, entries)
        else:
            output.line("no live connection claims a session")

    exits.run(show)


def _table(output: Output, entries: list[dict[str, Any]]) -> None:
    claimed = [entry.get("session") for entry in entries]
    rows: list[list[Cell | str]] = []
    for entry in sorted(entries, key=lambda entry: (str(entry.get("agent")), str(entry.get("session")))):
        control = entry.get("control")
        declared = control if isinstance(control, dict) else {}
        accepts = declared.get("accepts")
        window = declared.get("ack_window_ms")
        rows.append(
            [
                Cell(str(entry.get("session")), "magenta"),
                str(entry.get("agent", "")),
                str(entry.get("instance", "")),
                ", ".join(map(str, accepts)) if isinstance(accepts, list) and accepts else "nothing",
                f"{window} ms" if isinstance(window, int | float) else "",
                Cell("claimed twice", "red") if claimed.count(entry.get("session")) > 1 else "",
            ]
        )
    output.table(("session", "agent", "instance", "accepts", "answers within", ""), rows)
