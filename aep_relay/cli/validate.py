"""``aep-relay validate``: whether a file of Events is what the protocol asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from aep_relay.cli.support import exits
from aep_relay.cli.support.options import json_option

if TYPE_CHECKING:
    from aep_relay.cli.support.validation import Report


@click.command(
    "validate",
    short_help="Check a file of Events.",
    epilog="Exit codes: 0 nothing is wrong; 2 usage; 3 something is wrong.",
)
@click.argument("file", type=click.Path(allow_dash=True))
@click.option("--strict", is_flag=True, help="Count warnings as errors.")
@click.option("--quiet", "-q", is_flag=True, help="Leave notes out.")
@json_option
def command(file: str, strict: bool, quiet: bool, as_json: bool) -> None:
    """Check FILE, Events one a line; - is standard input. No relay is needed.

    \b
    error    what no relay takes, or what contradicts itself:
             the envelope, a payload field of the wrong type, missing or
             outside its vocabulary, content above the Event's capture level,
             an id or a position used twice, a run that ends twice
    warning  what is allowed and seldom meant: Events out of order, or after
             the end of their run or session
    note     what is worth knowing: redeliveries, types that are not
             registered, what is still open at the end

    Each finding has the number of its line.

    \b
    Examples:
      aep-relay validate events.jsonl
      aep-relay timeline s-1 --json | aep-relay validate - --strict
      aep-relay validate events.jsonl --json | jq 'select(.level == "error")'
    """
    from aep_relay.cli.support.output import Output
    from aep_relay.cli.support.validation import Report

    output = Output(json=as_json)
    report = Report(output, file, quiet=quiet)
    exits.run(report.run)
    output.flush()
    _end(report, strict=strict)


def _end(report: Report, *, strict: bool) -> None:
    counts = (
        f"{report.lines} Events, {report.errors} errors, {report.warnings} warnings, {report.notes} notes"
    )
    if report.errors or (strict and report.warnings):
        exits.end(
            exits.REFUSED, f"{report.name}: {counts}", "the lines at fault are listed on standard output"
        )
    if not report.output.json:
        report.output.line(f"{report.name}: {counts}")
