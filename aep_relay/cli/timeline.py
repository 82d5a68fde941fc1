"""``aep-relay timeline``: one session's history."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from aep_relay.cli.support import exits
from aep_relay.cli.support.options import Common, complete_session, relay_options
from aep_relay.protocol.registry import CAPTURES

if TYPE_CHECKING:
    from aep_relay.cli.support.output import Cell, Output
    from aep_relay.protocol.event import Event


@click.command("timeline", short_help="Show a session's history.", epilog=exits.EPILOG)
@click.argument("session", shell_complete=complete_session)
@click.option("--dag", is_flag=True, help="Show what caused what, as a tree.")
@click.option("--source", metavar="URI", help="Of this source only, where several share the session's name.")
@click.option("--capture", type=click.Choice(CAPTURES), help="Show no more content than this.")
@relay_options
def command(common: Common, session: str, dag: bool, source: str | None, capture: str | None) -> None:
    """Show what the relay holds of SESSION, in the session's own order.

    Commands and routing notes stand where they arrived. With --dag each Event stands under the one that its `cause`
    names; one whose cause is not held begins a tree of its own and says so. With --json it is one Event a line, and
    with --dag one object with its depth, the id of the Event it stands under, and the Event.

    \b
    Examples:
      aep-relay timeline s-1
      aep-relay timeline s-1 --dag
      aep-relay timeline s-1 --json > s-1.jsonl
    """
    from aep_relay.client.errors import Refused
    from aep_relay.client.history import held

    target, output = common.target(), common.output()
    events: dict[tuple[str, str], Event] = {}

    def take(event: Event) -> None:
        if source is None or event.source == source or event.position is None:
            events.setdefault(event.key, event)

    async def work() -> None:
        await held(target, {"session": session}, take, exits.tell, capture=capture)

    exits.run(work)
    if not events:
        text = f"the relay holds nothing of session {session}"
        raise Refused("no-session", text, "`aep-relay tail --from all --no-follow` shows what it holds")
    found = list(events.values())
    if dag:
        _show_dag(output, found)
    else:
        _show_list(output, found)
    if not output.json:
        _tell_sources(output, {event.source for event in found if event.position is not None})


def _tell_sources(output: Output, sources: set[str]) -> None:
    if len(sources) > 1:
        output.flush()
        names = ", ".join(sorted(sources))
        exits.tell(f"{len(sources)} sources share this session's name; --source keeps to one: {names}")


def _show_list(output: Output, events: list[Event]) -> None:
    if output.json:
        for event in events:
            output.event(event.raw)
        return
    output.table(("", "time", "", "severity", "type", "says"), _rows(events))


def _rows(events: list[Event]) -> list[list[Cell | str]]:
    from aep_relay.cli.support.output import SEVERITY_STYLES, Cell
    from aep_relay.cli.support.rows import clock, position, summary
    from aep_relay.client.times import moment
    from aep_relay.protocol.registry import SEVERITIES

    first = moment(events[0].time)
    rows: list[list[Cell | str]] = []
    for event in events:
        when = moment(event.time)
        after = "" if first is None or when is None else f"{(when - first).total_seconds():+.1f} s"
        severity = SEVERITIES[event.severity]
        who = "" if event.position is not None else f"by {event.agent}"
        rows.append(
            [
                Cell(position(event) or "-", "dim"),
                Cell(clock(event), "dim"),
                Cell(after, "dim"),
                Cell(severity, SEVERITY_STYLES[severity]),
                event.type,
                Cell(" ".join(part for part in (summary(event), who) if part), SEVERITY_STYLES[severity]),
            ]
        )
    return rows


def _show_dag(output: Output, events: list[Event]) -> None:
    from aep_relay.cli.support.causes import nodes
    from aep_relay.cli.support.output import SEVERITY_STYLES, Cell
    from aep_relay.cli.support.rows import position, summary
    from aep_relay.protocol.registry import SEVERITIES

    for node in nodes(events):
        event = node.event
        if output.json:
            parent = None if node.parent is None else node.parent.id
            output.document({"depth": node.depth, "under": parent, "event": msgspec.Raw(event.raw)})
            continue
        style = SEVERITY_STYLES[SEVERITIES[event.severity]]
        missing = event.cause is not None and node.parent is None
        output.line(
            Cell(node.branch + (position(event) or f"by {event.agent}"), "dim"),
            event.type,
            Cell(summary(event), style),
            Cell(f"(its cause {event.cause} is not held)" if missing else "", "dim"),
        )
