"""``aep-relay replay``: a recorded history once more, as new sessions."""

from __future__ import annotations

import math

import click

from aep_relay.cli.support import exits
from aep_relay.cli.support.options import Common, relay_options


def _speed(ctx: click.Context, param: click.Parameter, text: str) -> float:
    if text == "max":
        return math.inf
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not 0.0 < speed < math.inf:
        raise click.BadParameter("it is a number above 0, or max")
    return speed


@click.command("replay", short_help="Emit a recording again, as new sessions.", epilog=exits.EPILOG)
@click.argument("file", type=click.Path(allow_dash=True))
@click.option("--speed", default="1", show_default=True, metavar="N", callback=_speed,
              help="How many times as fast as it was recorded, or max for at once.")  # fmt: skip
@click.option("--max-pause", type=click.FloatRange(0.0), metavar="SECONDS", help="Let no pause take longer.")
@click.option(
    "--suffix", metavar="TEXT", help="What is added to the sessions' names.  [default: -replay- and a number]"
)
@click.option(
    "--keep-time", is_flag=True, help="Keep the Events' times; else each gets the time it is emitted at."
)
@click.option("--timeout", type=click.FloatRange(0.1), default=60.0, show_default=True, metavar="SECONDS",
              help="How long to try for each batch.")  # fmt: skip
@click.option(
    "--dry-run",
    is_flag=True,
    help="Write the Events to standard output instead, at once; no relay is needed.",
)
@relay_options
def command(
    common: Common,
    file: str,
    speed: float,
    max_pause: float | None,
    suffix: str | None,
    keep_time: bool,
    timeout: float,
    dry_run: bool,
) -> None:
    """Emit the Events of FILE again, as sessions and with ids of their own; - is standard input.

    Sessions get a suffix, ids are new, and what refers to either (cause, subject, a parent's or child's session)
    refers to the new ones. Positions stay, trace context goes. Commands are never sent again: they are left out and
    counted. The Events go by POST, which claims no session, so that nobody can command a replay. They go in the
    file's order, apart by as much as their times are.

    \b
    Examples:
      aep-relay replay events.jsonl
      aep-relay replay events.jsonl --speed 10 --max-pause 2
      aep-relay replay events.jsonl --dry-run | aep-relay validate -
    """
    from aep_relay.cli.support.replaying import Replay, Rewriter

    output = common.output()
    rewriter = Rewriter(suffix, keep_time=keep_time)
    replay = Replay(rewriter, speed, max_pause)
    if dry_run:
        exits.run(lambda: replay.show(file, output))
        output.flush()
        exits.tell(replay.told())
        return
    target = common.target()
    exits.run(lambda: replay.emit(file, target, timeout))
    if output.json:
        counts = {"accepted": replay.emitted, "commands": replay.commands}
        output.document({**counts, "sessions": rewriter.sessions})
    else:
        output.line(replay.told())
