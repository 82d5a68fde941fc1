"""What ``stdio`` and ``run`` share: a relay in their own process, or a running one that they are clients of."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from aep_relay.cli import fail
from aep_relay.cli.support import exits
from aep_relay.config import Config, ConfigError, load

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aep_relay.client.target import Target
    from aep_relay.daemon import Companion

_TAKEN = (
    "--port 0 takes a free port; --relay URL makes this a client of the relay that runs there, if one does"
)


def resolved(relay: str | None, token_file: str | None, host: str | None, port: int | None) -> Target | None:
    """Return the relay that --relay names, None without it; ends the process if it makes no sense."""
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
        exits.cannot_listen(error, _TAKEN)
    # A thread that still waits for a pipe must not keep the process.
    sys.stderr.flush()
    os._exit(code)
