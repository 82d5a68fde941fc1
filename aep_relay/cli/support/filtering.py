"""An attr-match filter made of flags, of JSON, or of both (AEP-0003 §6)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from aep_relay.cli.support.making import scalar
from aep_relay.cli.support.options import complete_session, complete_type
from aep_relay.protocol.registry import SEVERITIES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_REPEATABLE = "session", "agent", "type", "source", "subject", "run"


def filter_options(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command the flags that ``made`` takes."""
    options = [
        click.option(
            "--session",
            multiple=True,
            metavar="NAME",
            shell_complete=complete_session,
            help="Of this session.",
        ),
        click.option("--agent", multiple=True, metavar="NAME", help="Of this agent."),
        click.option(
            "--type",
            multiple=True,
            metavar="TYPE",
            shell_complete=complete_type,
            help='Of this type, or a prefix and ".*", such as "attention.*".',
        ),
        click.option("--source", multiple=True, metavar="URI", help="Of this source."),
        click.option("--subject", multiple=True, metavar="TEXT", help="With this subject."),
        click.option("--run", multiple=True, metavar="NAME", help="Of this run."),
        click.option("--severity", type=click.Choice(SEVERITIES), help="Of this severity and above."),
        click.option(
            "--where",
            multiple=True,
            metavar="NAME=VALUE",
            help="With this attribute, extension attributes too; a whole number, true and false are what they look "
            'like, in quotes ("1") they are text.',
        ),
        click.option(
            "--filter", "filter_json", metavar="JSON", help="An attr-match filter; flags add to it."
        ),
    ]
    for option in reversed(options):
        function = option(function)
    return function


def made(
    *,
    filter_json: str | None,
    severity: str | None,
    where: Sequence[str],
    **repeatable: Sequence[str],
) -> dict[str, object]:
    """Return the filter that the flags describe; all of them have to hold. Raises ``click.UsageError``."""
    from aep_relay.protocol.errors import InvalidFilter, InvalidParameter
    from aep_relay.protocol.filters import parse, parse_json

    found: dict[str, object] = {}
    try:
        if filter_json is not None:
            parse_json(filter_json)
            found.update(json.loads(filter_json))
        for name in _REPEATABLE:
            if repeatable[name]:
                _add(found, name, list(repeatable[name]), f"--{name}")
        if severity is not None:
            _add(found, "severity", {"gte": severity}, "--severity")
        for text in where:
            name, equals, value = text.partition("=")
            if not equals:
                raise click.UsageError(f"--where {text}: write it as NAME=VALUE")
            _add(found, name, scalar(value), "--where")
        parse(found)
    except (InvalidFilter, InvalidParameter) as error:
        raise click.UsageError(f"the filter is not attr-match: {error.detail}") from None
    return found


def _add(found: dict[str, object], name: str, predicate: object, flag: str) -> None:
    if name in found:
        raise click.UsageError(
            f"{flag}: {name} is given more than once; write what is meant as --filter JSON"
        )
    found[name] = predicate
