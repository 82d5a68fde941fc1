"""``aep-relay stdio``: the relay as the process at the end of a pipe."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from aep_relay.cli import fail
from aep_relay.config import Config, ConfigError, load
from aep_relay.protocol.registry import CAPTURE_RANK, CAPTURES

if TYPE_CHECKING:
    from collections.abc import Sequence

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
def command(
    filter_json: str, capture: str | None, from_json: str | None, dialect: str, agent: str | None,
    accepts: Sequence[str], file: Path | None, host: str | None, port: int | None,
) -> None:  # fmt: skip
    """Take in the Events on standard input, and write those that match to standard output, one a line.

    Lines are Events of AEP-0001, or of the stdio dialect (aep_version), which are mapped. session.opened is answered
    by session.ready, the end of standard input by session.closed; a line that is no Event by event.rejected on
    standard error. It ends when either stream does.

    The relay behind it is one of its own. With --config, --host or --port it serves the data port as well, so that
    others can watch and send commands.
    """
    from aep_relay.bindings.stdio import StdioProcess, Wanted
    from aep_relay.config.capturing import adapter
    from aep_relay.protocol.dialect import DialectMapper
    from aep_relay.protocol.errors import InvalidParameter
    from aep_relay.protocol.filters import parse_json
    from aep_relay.protocol.position import parse_from_json
    from aep_relay.protocol.stdio import Dialect

    config = configured(file, host, port, listens=file is not None or host is not None or port is not None)
    try:
        wanted = Wanted(
            parse_json(filter_json),
            None if capture is None else CAPTURE_RANK[capture],
            None if from_json is None else parse_from_json(from_json),
            {"auto": None, "aep": Dialect.AEP, "stdio": Dialect.STDIO}[dialect],
            frozenset(accepts),
        )
    except InvalidParameter as error:
        raise click.UsageError(error.detail) from None
    mapper = DialectMapper(agent=agent, epoch_seed=epoch_seed(), adapter=adapter(config.capture))
    level = config.log.level if file is not None else "warning"
    run_embedded(config, StdioProcess(wanted, mapper), level)


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


def run_embedded(config: Config, companion: Companion, level: str) -> None:
    """Run a relay for ``companion``, and end with its exit code."""
    import structlog
    import trio

    from aep_relay import daemon, logs, process

    logs.configure(level, config.log.format, sys.stderr, config.secrets)
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
