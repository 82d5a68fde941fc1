"""``aep-relay token``: tokens that grant less than everything."""

from __future__ import annotations

import re
import secrets
import tomllib
from datetime import UTC, datetime, timedelta

import click

from aep_relay.cli import fail
from aep_relay.config import ConfigError
from aep_relay.config.reading import read_token
from aep_relay.config.tables import GRANTS
from aep_relay.config.tokens import hash_of
from aep_relay.protocol.registry import CAPTURES

PREFIX = "aep_"
"""What every token begins with, so that scanners for leaked secrets can tell it."""
TOKEN_BYTES = 32

_SPAN = re.compile(r"([0-9]{1,6})([mhdw])")
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


@click.group("token")
def command() -> None:
    """Make bearer tokens for [[tokens]] in the configuration."""


@command.command("new")
@click.argument("name")
@click.option(
    "--grant",
    "grants",
    multiple=True,
    required=True,
    type=click.Choice(GRANTS),
    help="What it grants; repeatable.",
)
@click.option(
    "--agents", multiple=True, metavar="PATTERN", help="Whose Events it may emit and consume; repeatable."
)
@click.option(
    "--sessions",
    multiple=True,
    metavar="PATTERN",
    help="Of which sessions, and which to command; repeatable.",
)
@click.option(
    "--commands", multiple=True, metavar="PATTERN", help="Types of command it may send; repeatable."
)
@click.option("--capture", type=click.Choice(CAPTURES), help="The most content its subscriptions get.")
@click.option(
    "--expires", metavar="WHEN", help="A date, a date and time with an offset, or a span such as 90d or 12h."
)
@click.option(
    "--events-per-second", type=float, metavar="N", help="Events it may emit, all its connections together."
)
@click.option("--max-connections", type=int, metavar="N", help="Streams and sockets it may hold at once.")
def new(name: str, grants: tuple[str, ...], expires: str | None, **narrowing: object) -> None:
    """Make a token called NAME and print it, followed by the lines of configuration that let it in.

    The token is shown this once: the lines hold its hash only. The relay knows it when the lines are in its
    configuration file and it was started again or sent SIGHUP. In a PATTERN, * stands for any run of characters.

    \b
    aep-relay token new builders --grant emit --agents 'build-*' --expires 90d
    aep-relay token new oncall --grant consume --grant control --commands 'control.*' --capture metadata
    """
    token = PREFIX + secrets.token_urlsafe(TOKEN_BYTES)
    lines = _table(
        "tokens",
        name=name,
        sha256=hash_of(token),
        grants=tuple(dict.fromkeys(grants)),
        expires=None if expires is None else _instant(expires),
        **narrowing,
    )
    try:
        read_token(tomllib.loads(lines)["tokens"][0], "token")
    except (ConfigError, ValueError) as error:
        fail(error)
    click.echo("The token, shown this once:", err=True)
    click.echo(f"{token}\n")
    click.echo("Lines for the configuration file:", err=True)
    click.echo(lines, nl=False)


def _instant(text: str) -> datetime:
    now = datetime.now(UTC).replace(microsecond=0)
    span = _SPAN.fullmatch(text)
    try:
        when = now + timedelta(**{_UNITS[span[2]]: int(span[1])}) if span else datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        fail(f"--expires: {text} is no date, no date and time with an offset, and no span such as 90d")
    if when.tzinfo is None:
        if len(text) > len("2030-01-31"):
            fail(f"--expires: {text} has no offset; add Z for UTC")
        when = when.replace(tzinfo=UTC)
    if when <= now:
        fail(f"--expires: {text} is not in the future")
    return when


def _table(array: str, **settings: object) -> str:
    """Return the lines of a table in an array of tables, with what is set."""
    given = {key: value for key, value in settings.items() if value not in (None, ())}
    return f"[[{array}]]\n" + "".join(f"{key} = {_toml(value)}\n" for key, value in given.items())


def _toml(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, str):
        plain = (c if c.isprintable() and c not in '"\\' else f"\\U{ord(c):08x}" for c in value)
        return f'"{"".join(plain)}"'
    return str(value)
