"""The relay under measurement: the installed daemon, with its defaults unless a scenario says otherwise."""

from __future__ import annotations

import contextlib
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path

from . import machine
from .process import Server, free_port, serving


def _command() -> list[str | Path]:
    """The installed console script, or the module where the package is only on the path."""
    script = Path(sys.executable).with_name("aep-relay")
    return [script] if script.exists() else [sys.executable, "-m", "aep_relay"]


def config(port: int, operator_port: int, token: str, limits: dict[str, int | float]) -> str:
    """The daemon's configuration as TOML."""
    lines = [
        "[listen]",
        'host = "127.0.0.1"',
        f"port = {port}",
        "[auth]",
        f'token = "{token}"',
        "[operator]",
        f"port = {operator_port}",
        "[limits]",
        *(f"{name} = {value}" for name, value in limits.items()),
    ]
    return "\n".join(lines) + "\n"


def upstream(server: Server, mode: str) -> str:
    """The configuration of a link to ``server``."""
    return (
        f'[[upstream]]\nname = "hub"\nurl = "http://127.0.0.1:{server.port}"\n'
        f'token = "{server.token}"\nmode = "{mode}"\n'
    )


@contextlib.contextmanager
def relay(core: machine.Core, *, more: str = "", **limits: int | float) -> Iterator[Server]:
    """A relay on ``core`` for the block, authentication on; ``limits`` are keys of its ``[limits]`` table, ``more``
    is added to its configuration.
    """
    port, operator_port, token = free_port(), free_port(), secrets.token_hex(16)
    text = config(port, operator_port, token, limits) + more
    with serving(
        [*_command(), "serve", "--config", "relay.toml"], port, core, token=token, files={"relay.toml": text}
    ) as server:
        yield server
