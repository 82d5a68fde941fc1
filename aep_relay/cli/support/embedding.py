"""What ``stdio`` and ``run`` share: a relay in their own process, or a running one that they are clients of."""

from __future__ import annotations

import functools
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from aep_relay import stderr
from aep_relay.cli import fail
from aep_relay.cli.support import exits
from aep_relay.config import Config, ConfigError, load

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aep_relay.client.target import Target
    from aep_relay.daemon import Companion
    from aep_relay.protocol.stdio import Dialect

_TAKEN = (
    "--port 0 takes a free port; --relay URL makes this a client of the relay that runs there, if one does"
)


@dataclass(frozen=True, slots=True)
class Place:
    """Where the relay is: in this process, as the options say, or another one."""

    file: Path | None
    host: str | None
    port: int | None
    relay: str | None
    token_file: str | None

    @property
    def asks_for_a_port(self) -> bool:
        """Whether the relay is one of its own and said to be open to others."""
        return self.relay is None and (self.file, self.host, self.port) != (None, None, None)

    def target(self) -> Target | None:
        """Return the relay that --relay names, None without it; ends the process if it makes no sense."""
        from aep_relay.client.errors import Misused
        from aep_relay.client.target import resolve

        if self.relay is None:
            return None
        if self.host is not None or self.port is not None:
            raise click.UsageError("give either --relay or a data port, not both")
        try:
            target, warnings = resolve(self.relay, self.token_file, os.environ)
        except Misused as error:
            exits.end(exits.USAGE, error.message, error.advice)
        for warning in warnings:
            exits.tell(f"warning: {warning}")
        return target

    def config(self, *, listens: bool) -> Config:
        """Return the configuration of the embedded relay; ends the process if it can't be used."""
        try:
            config = load(self.file, os.environ, {"--host": self.host, "--port": self.port})
        except ConfigError as error:
            fail(error)
        if listens:
            return config
        return replace(
            config,
            listen=replace(config.listen, host=None, unix=None),
            operator=replace(config.operator, enabled=False),
        )


def place_options(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that say where the relay is, as its argument ``place``."""

    @functools.wraps(function)
    def wrapped(
        file: Path | None,
        host: str | None,
        port: int | None,
        relay: str | None,
        token_file: str | None,
        **rest: Any,
    ) -> None:
        stderr.install()
        function(place=Place(file, host, port, relay, token_file), **rest)

    made: Callable[..., None] = wrapped
    for option in reversed(_OPTIONS):
        made = option(made)
    return made


_OPTIONS = (
    click.option(
        "--config", "file", metavar="FILE", type=click.Path(path_type=Path), help="TOML file to read."
    ),
    click.option("--host", metavar="HOST", help="Address or name of the data port (AEP_HOST)."),
    click.option("--port", metavar="PORT", type=int, help="TCP port of the data port (AEP_PORT)."),
    click.option(
        "--relay",
        metavar="URL",
        help="Be a client of this relay instead: http, https, ws or wss URL, or unix:PATH.",
    ),
    click.option(
        "--token-file", metavar="FILE", type=click.Path(), help="Its token.  [else the token in AEP_TOKEN]"
    ),
)


def dialect_option(text: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return the option that says which dialect is written; ``text`` is its help."""
    return click.option(
        "--dialect", type=click.Choice(["auto", "aep", "stdio"]), default="auto", show_default=True, help=text
    )


def dialect_of(name: str) -> Dialect | None:
    """Return the dialect of an option's value, None for what the other side speaks."""
    from aep_relay.protocol.stdio import Dialect

    return {"auto": None, "aep": Dialect.AEP, "stdio": Dialect.STDIO}[name]


def epoch_seed() -> int:
    """Return an epoch after that of every earlier start: milliseconds since 1970."""
    import time

    return time.time_ns() // 1_000_000


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
    stderr.finish()
    os._exit(code)
