"""``aep-relay stdio``: the relay as the process at the end of a pipe."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from aep_relay.cli.support.embedding import (
    Place,
    dialect_of,
    dialect_option,
    epoch_seed,
    place_options,
    run_embedded,
)
from aep_relay.protocol.registry import CAPTURE_RANK, CAPTURES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aep_relay.bindings.stdio import StdioProcess, Wanted
    from aep_relay.cli.support.bridging import Bridge
    from aep_relay.client.target import Target


@click.command("stdio", short_help="Be a relay at the end of a pipe.")
@click.option(
    "--filter", "filter_json", metavar="JSON", default="{}", help="Which Events go to standard output."
)
@click.option("--capture", type=click.Choice(CAPTURES), help="The most content that goes to standard output.")
@click.option("--from", "from_json", metavar="JSON", help='Replay first: positions to resume from, or "all".')
@dialect_option("What standard output speaks; auto: what the other side does.")
@click.option("--agent", metavar="NAME", help="Who emits lines of the stdio dialect.  [else whom they name]")
@click.option("--accepts", metavar="TYPE", multiple=True, help="A type of command that the other side takes.")
@place_options
def command(
    place: Place, filter_json: str, capture: str | None, from_json: str | None, dialect: str, agent: str | None,
    accepts: Sequence[str],
) -> None:  # fmt: skip
    """Take in the Events on standard input, and write those that match to standard output, one a line.

    Lines are Events of AEP-0001, or of the stdio dialect (aep_version), which are mapped. session.opened is answered
    by session.ready, the end of standard input by session.closed; a line that is no Event by event.rejected on
    standard error. It ends when either stream does.

    The relay behind it is one of its own. With --config, --host or --port it serves the data port as well, so that
    others can watch and send commands. With --relay it is a client of a running relay.
    """
    from aep_relay.bindings.stdio import StdioProcess
    from aep_relay.config.capturing import adapter
    from aep_relay.protocol.dialect import DialectMapper

    target = place.target()
    config = place.config(listens=place.asks_for_a_port)
    # What is replayed comes from the relay that holds it.
    near_from = from_json if target is None else None
    wanted = _wanted(filter_json, capture, near_from, dialect, accepts)
    mapper = DialectMapper(agent=agent, epoch_seed=epoch_seed(), adapter=adapter(config.capture))
    level = config.log.level if place.file is not None else "warning"
    process = StdioProcess(wanted, mapper)
    if target is None:
        run_embedded(config, process, level)
    bridge = _bridge(process, target, agent, accepts, filter_json, from_json, capture)
    run_embedded(config, bridge, level, [target.token] if target.token else [])


def _wanted(
    filter_json: str, capture: str | None, from_json: str | None, dialect: str, accepts: Sequence[str]
) -> Wanted:
    """Return what is to go to standard output. Raises ``click.UsageError``."""
    from aep_relay.bindings.stdio import Wanted
    from aep_relay.protocol.errors import InvalidParameter
    from aep_relay.protocol.filters import parse_json
    from aep_relay.protocol.position import parse_from_json

    try:
        return Wanted(
            parse_json(filter_json),
            None if capture is None else CAPTURE_RANK[capture],
            None if from_json is None else parse_from_json(from_json),
            dialect_of(dialect),
            frozenset(accepts),
        )
    except InvalidParameter as error:
        raise click.UsageError(error.detail) from None


def _bridge(
    process: StdioProcess,
    target: Target,
    agent: str | None,
    accepts: Sequence[str],
    filter_json: str,
    from_json: str | None,
    capture: str | None,
) -> Bridge:
    """Return ``process`` as a client of ``target``. Raises ``click.UsageError``."""
    from aep_relay.cli.support.bridging import Bridge

    _wanted(filter_json, capture, from_json, "auto", accepts)
    from_ = from_json if from_json in (None, "all") else json.loads(from_json)
    bridge = Bridge(
        process,
        target,
        agent=agent or "aep-relay-stdio",
        accepts=accepts,
        subscribe=json.loads(filter_json),
        from_=from_,
        capture=capture,
        lasting=False,
    )
    process.relief = bridge.below
    return bridge
