"""``aep-relay serve``: run the relay until a signal ends it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from aep_relay import stderr
from aep_relay.cli import fail
from aep_relay.cli.support import exits
from aep_relay.config import ConfigError, load


@click.command("serve")
@click.option("--config", "file", metavar="FILE", type=click.Path(path_type=Path), help="TOML file to read.")
@click.option("--host", metavar="HOST", help="Address or name of the data port (AEP_HOST).")
@click.option("--port", metavar="PORT", type=int, help="TCP port of the data port (AEP_PORT).")
@click.option("--token-file", metavar="FILE", help="File that holds the bearer token.")
def command(file: Path | None, host: str | None, port: int | None, token_file: str | None) -> None:
    """Run the relay until SIGINT or SIGTERM.

    SIGHUP re-reads FILE and the files it names: tokens, limits and log level change without ending a stream.

    Flags override the environment, the environment overrides FILE. Without any of them it listens on
    127.0.0.1:8787, without a token.
    """
    stderr.install()
    flags = {"--host": host, "--port": port, "--token-file": token_file}
    try:
        config = load(file, os.environ, flags)
    except ConfigError as error:
        fail(error)

    import structlog
    import trio

    from aep_relay import daemon, logs, process

    logs.configure(config.log.level, config.log.format, sys.stderr, config.secrets)
    log = structlog.get_logger()
    for warning in config.warnings:
        log.warning("configuration", detail=warning)
    process.collect_rarely()
    try:
        code = trio.run(daemon.serve, config, lambda: load(file, os.environ, flags))
    except ConfigError as error:
        fail(error)
    except OSError as error:
        exits.cannot_listen(
            error, "end what listens there, or choose another place: --port, AEP_PORT or [listen]"
        )
    sys.exit(code)
