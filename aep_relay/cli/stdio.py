"""``aep-relay stdio``: the relay as the process at the end of a pipe."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from aep_relay.cli import fail
from aep_relay.config import Config, ConfigError, load
from aep_relay.protocol.registry import CAPTURE_RANK, CAPTURES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aep_relay.client.target import Target
    from aep_relay.daemon import Companion


@click.command("stdio")
@click.option(
    "--filter", "filter_json", metavar="JSON", default="{}", help="Which Events go to standard output."
)
@click.option("--capture", type=click.Choice(CAPTURES), help="The most content that goes to standard output.")
@click.option("--from", "from_json", metavar="JSON", help='Replay first: positions to resume from, or "all".')
@click.option("--dialect", type=click.Choice(["auto", "aep", "stdio"]), default="auto", show_default=True,
              help="What standard output speaks; auto: what the other side does.")  # fmt: skip
@click.option("--agent", metavar="NAME", help="Who emits lines of the stdio dialect.  [else whom they name]")
@click.option("--accepts", metavar="TYPE", multiple=True, help="A type of command that the other side takes.")
@click.option("--config", "file", metavar="FILE", type=click.Path(path_type=Path), help="TOML file to read.")
@click.option("--host", metavar="HOST", help="Serve the data port there as well.")
@click.option("--port", metavar="PORT", type=int, help="Serve the data port there as well.")
@click.option(
    "--relay",
    metavar="URL",
    help="Be a client of this relay instead: http, https, ws or wss URL, or unix:PATH.",
)
@click.option(
    "--token-file", metavar="FILE", type=click.Path(), help="Its token.  [else the token in AEP_TOKEN]"
)
def command(
    filter_json: str, capture: str | None, from_json: str | None, dialect: str, agent: str | None,
    accepts: Sequence[str], file: Path | None, host: str | None, port: int | None, relay: str | None,
    token_file: str | None,
) -> None:  # fmt: skip
    """Take in the Events on standard input, and write those that match to standard output, one a line.

    Lines are Events of AEP-0001, or of the stdio dialect (aep_version), which are mapped. session.opened is answered
    by session.ready, the end of standard input by session.closed; a line that is no Event by event.rejected on
    standard error. It ends when either stream does.

    The relay behind it is one of its own. With --config, --host or --port it serves the data port as well, so that
    others can watch and send commands. With --relay it is a client of a running relay.
    """
    from aep_relay.bindings.stdio import StdioProcess, Wanted
    from aep_relay.config.capturing import adapter
    from aep_relay.protocol.dialect import DialectMapper
    from aep_relay.protocol.errors import InvalidParameter
    from aep_relay.protocol.filters import parse_json
    from aep_relay.protocol.position import parse_from_json
    from aep_relay.protocol.stdio import Dialect

    target = resolved(relay, token_file, host, port)
    listens = target is None and (file is not None or host is not None or port is not None)
    config = configured(file, host, port, listens=listens)
    try:
        wanted = Wanted(
            parse_json(filter_json),
            None if capture is None else CAPTURE_RANK[capture],
            None if from_json is None or target is not None else parse_from_json(from_json),
            {"auto": None, "aep": Dialect.AEP, "stdio": Dialect.STDIO}[dialect],
            frozenset(accepts),
        )
    except InvalidParameter as error:
        raise click.UsageError(error.detail) from None
    mapper = DialectMapper(agent=agent, epoch_seed=epoch_seed(), adapter=adapter(config.capture))
    level = config.log.level if file is not None else "warning"
    process = StdioProcess(wanted, mapper)
    if target is None:
        run_embedded(config, process, level)
    from aep_relay.cli.support.bridging import Bridge

    from_ = None
    if from_json is not None:
        parse_from_json(from_json)
        from_ = "all" if from_json == "all" else json.loads(from_json)
    bridge = Bridge(
        process, target, agent=agent or "aep-relay-stdio", accepts=accepts, subscribe=json.loads(filter_json),
        from_=from_, capture=capture, lasting=False,
    )  # fmt: skip
    process.relief = bridge.below
    run_embedded(config, bridge, level, [target.token] if target.token else [])


def resolved(relay: str | None, token_file: str | None, host: str | None, port: int | None) -> Target | None:
    """Return the relay that --relay names, None without it; ends the process if it makes no sense."""
    from aep_relay.cli.support import exits
    from aep_relay.client.errors import Misused
    from aep_relay.client.target import resolve

    if relay is None:
        return None
    if host is not None or port is not None:
        raise click.UsageError("give either --relay or a data port, not both")
    try:
        target, warnings = resolve(relay, token_file, os.environ)
    except Misused as error:
        exits.end(exits.USAGE, error.message, error.advice)
    for warning in warnings:
        exits.tell(f"warning: {warning}")
    return target


def epoch_seed() -> int:
    """Return an epoch after that of every earlier start: milliseconds since 1970."""
    import time

    return time.time_ns() // 1_000_000


def configured(file: Path | None, host: str | None, port: int | None, *, listens: bool) -> Config:
    """Return the configuration of an embedded relay; ends the process if it can't be used."""
    try:
        config = load(file, os.environ, {"--host": host, "--port": port})
    except ConfigError as error:
        fail(error)
    if listens:
        return config
    return replace(
        config,
        listen=replace(config.listen, host=None, unix=None),
        operator=replace(config.operator, enabled=False),
    )


def run_embedded(config: Config, companion: Companion, level: str, secrets: Sequence[str] = ()) -> NoReturn:
    """Run a relay for ``companion``, and end with its exit code. ``secrets`` are for no log."""
    import structlog
    import trio

    from aep_relay import daemon, logs, process

    logs.configure(level, config.log.format, sys.stderr, [*config.secrets, *secrets])
    for warning in config.warnings:
        structlog.get_logger().warning("configuration", detail=warning)
    process.collect_rarely()
    try:
        code = trio.run(lambda: daemon.serve(config, companion=companion))
    except ConfigError as error:
        fail(error)
    except OSError as error:
        fail(f"cannot listen: {error.strerror or error}{f' ({error.filename})' if error.filename else ''}")
    # A thread that still waits for a pipe must not keep the process.
    sys.stderr.flush()
    os._exit(code)
