"""Options that mean the same everywhere: which relay, with which token, for whom the output is."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from aep_relay.cli.support.exits import ending, tell
from aep_relay.cli.support.output import Output

if TYPE_CHECKING:
    from collections.abc import Callable

    from aep_relay.client.target import Target

COMPLETION_SECONDS = 1.5


@dataclass(frozen=True, slots=True)
class Common:
    """What the shared options say."""

    relay: str | None
    token_file: str | None
    json: bool

    def target(self) -> Target:
        """Return the relay to talk to; warn of what is unwise. Raises ``Misused``."""
        from aep_relay.client.target import resolve

        target, warnings = resolve(self.relay, self.token_file, os.environ)
        for warning in warnings:
            tell(f"warning: {warning}")
        return target

    def output(self) -> Output:
        """Return where the result goes."""
        return Output(json=self.json)


def relay_options(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command the shared options, as its argument ``common``, and the documented ends."""

    @functools.wraps(function)
    def wrapped(relay: str | None, token_file: str | None, as_json: bool, **rest: Any) -> None:
        ending(function)(common=Common(relay, token_file, as_json), **rest)

    return _relay(_token(_json(wrapped)))


_relay = click.option(
    "--relay",
    metavar="URL",
    help="The relay: http, https, ws or wss URL, or unix:PATH.  [AEP_RELAY; default: http://127.0.0.1:8787]",
)
_token = click.option(
    "--token-file",
    metavar="FILE",
    type=click.Path(),
    help="File that holds the bearer token.  [else the token in AEP_TOKEN]",
)
_json = click.option("--json", "as_json", is_flag=True, help="Write JSON, for machines.")


def json_option(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command that talks to no relay ``--json``, as its argument ``as_json``, and the documented ends."""
    return _json(ending(function))


def complete_type(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete an Event type."""
    from aep_relay.protocol.registry import CATEGORIES, TYPES

    patterns = [f"{category}.*" for category in CATEGORIES]
    return [name for name in (*TYPES, *patterns) if name.startswith(incomplete)]


def complete_session(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete the name of a session that a live connection claims."""
    import trio

    from aep_relay.client.errors import ClientError
    from aep_relay.client.socket import open_socket
    from aep_relay.client.target import resolve

    async def ask() -> list[str]:
        with trio.move_on_after(COMPLETION_SECONDS):
            async with open_socket(target) as socket:
                return [str(entry.get("session")) for entry in await socket.roster()]
        return []

    try:
        target, _ = resolve(ctx.params.get("relay"), ctx.params.get("token_file"), os.environ)
        found = trio.run(ask)
    except (ClientError, OSError):
        return []
    return sorted({name for name in found if name.startswith(incomplete) and name.isprintable()})
