"""``aep-relay check-config``: whether ``serve`` would start with a file, in this environment."""

from __future__ import annotations

import os
from pathlib import Path

import click

from aep_relay.bindings import cards
from aep_relay.cli import fail
from aep_relay.config import ConfigError, load


@click.command("check-config", short_help="Check a configuration.")
@click.option("--token-file", metavar="FILE", help="As for serve.")
@click.argument("file", type=click.Path(path_type=Path))
def command(file: Path, token_file: str | None) -> None:
    """Check FILE, together with the AEP_ variables of this environment.

    Exits with 0 if `aep-relay serve --config FILE` would accept it with the same options, else with 2 and the
    first thing that is wrong. Warnings don't change the exit code.
    """
    try:
        config = load(file, os.environ, {"--token-file": token_file})
        cards.inspector(config.cards)
        if config.upstreams:
            # It brings all that a link needs.
            from aep_relay.upstream import chain

            chain.check(config.upstreams)
    except ConfigError as error:
        fail(error)
    for warning in config.warnings:
        click.echo(f"warning: {warning}", err=True)
    click.echo(f"{file}: ok")
