"""``aep-relay emit``: Events in."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from aep_relay.cli.support import exits
from aep_relay.cli.support.making import AGENT, make, new_epoch, new_id, pair, parse_data, scalar, source_of
from aep_relay.cli.support.options import Common, complete_type, relay_options
from aep_relay.protocol.registry import CAPTURES, SEVERITIES

if TYPE_CHECKING:
    from aep_relay.cli.support.output import Output
    from aep_relay.cli.support.sending import Feed
    from aep_relay.protocol.event import Event


@click.command("emit", short_help="Send Events.", epilog=exits.EPILOG)
@click.argument("file", required=False, type=click.Path(allow_dash=True))
@click.option(
    "--type", "type_", metavar="TYPE", shell_complete=complete_type, help="Emit one Event of this type."
)
@click.option("--session", metavar="NAME", help="Its session; needed unless the type is agent.*.")
@click.option("--agent", metavar="NAME", default=AGENT, show_default=True, help="Who emits it.")
@click.option("--source", metavar="URI", help="Its source.  [default: made of host, agent and session]")
@click.option("--id", "id_", metavar="TEXT", help="Its id.  [default: a new one]")
@click.option("--time", metavar="TIME", help="Its time.  [default: now]")
@click.option("--seq", type=click.IntRange(0), metavar="N", help="Its seq.  [default: 0, with a new epoch]")
@click.option(
    "--epoch", type=click.IntRange(0), metavar="N", help="Its epoch.  [default: milliseconds since 1970]"
)
@click.option("--subject", metavar="TEXT", help="Its subject.")
@click.option("--run", metavar="NAME", help="Its run.")
@click.option("--step", metavar="NAME", help="Its step.")
@click.option("--cause", metavar="ID", help="The id of the Event that caused it.")
@click.option("--severity", type=click.Choice(SEVERITIES), help="Its severity.")
@click.option("--capture", type=click.Choice(CAPTURES), help="How much content it holds.")
@click.option("--data", metavar="JSON", help="Its payload, a JSON object.")
@click.option("--attr", multiple=True, metavar="NAME=VALUE", help="An extension attribute (repeatable).")
@click.option("--keep-going", is_flag=True, help="Leave out what is invalid or refused, and go on.")
@click.option("--timeout", type=click.FloatRange(0.1), default=60.0, show_default=True, metavar="SECONDS",
              help="How long to try for each batch.")  # fmt: skip
@relay_options
def command(common: Common, file: str | None, keep_going: bool, timeout: float, **flags: Any) -> None:
    """Emit one Event made of flags, or those in FILE, one JSON object a line; - is standard input.

    Without --type and FILE, standard input is read. Events go out in batches, in order, as they come in; what can't
    be delivered is sent again with the same ids, so that nothing is taken twice. Each line is checked before. The
    first that is invalid or refused ends it, with its line number, after everything in front of it has been
    accepted; --keep-going leaves it out instead, and the exit code is still 3.

    Commands do not go this way: see `aep-relay send`.

    \b
    Examples:
      aep-relay emit --type run.started --session s-1 --run r-1
      aep-relay emit --type progress.status --session s-1 --data '{"percent": 40, "phase": "tests"}'
      aep-relay emit events.jsonl
      my-agent | aep-relay emit -
    """
    from aep_relay.cli.support.sending import Feed

    given = {name: value for name, value in flags.items() if value not in (None, ())}
    type_ = given.get("type_")
    feed = Feed(common.target(), timeout, keep_going=keep_going)
    event = None
    if type_ is not None:
        if file is not None:
            raise click.UsageError("give either FILE or --type, not both")
        event = _event(flags)
        exits.run(partial(feed.one, event))
    else:
        stray = sorted(given.keys() - {"agent"})
        if stray:
            raise click.UsageError(f"--{stray[0].strip('_')} describes one Event, and needs --type")
        if file is None and sys.stdin.isatty():
            exits.tell("reading Events from standard input, one a line; Ctrl-D ends it")
        exits.run(lambda: feed.file(file or "-"))
    _tell(common.output(), feed, event)


def _tell(output: Output, feed: Feed, event: Event | None) -> None:
    """Say what became of the Events; ``event`` is the one that flags made. Ends with 3 if any was left out."""
    if output.json:
        made = {} if event is None else {"id": event.id}
        counts = {"accepted": feed.accepted, "refused": feed.refused, "retries": feed.retries}
        output.document({**counts, **made})
    elif event is not None:
        output.line(f"accepted: {event.id}")
    else:
        output.line(
            f"{feed.accepted} Events accepted" + (f", {feed.refused} left out" if feed.refused else "")
        )
    if feed.refused:
        output.flush()
        exits.end(exits.REFUSED, f"{feed.refused} lines were left out")


def _event(flags: dict[str, Any]) -> Event:
    """Return the Event that the flags describe. Raises ``click.UsageError``."""
    type_, session, agent = flags["type_"], flags["session"], flags["agent"]
    seq, epoch = flags["seq"], flags["epoch"]
    if session is not None and type_ != "attention.routed" and seq is None:
        # A script that calls this again and again has no count to keep: every call is a new epoch.
        seq, epoch = 0, new_epoch() if epoch is None else epoch
    extensions = {name: scalar(value) for name, value in (pair(text, "--attr") for text in flags["attr"])}
    from aep_relay.client.times import now

    return make(
        {
            "id": flags["id_"] or new_id(),
            "type": type_,
            "time": flags["time"] or now(),
            "source": flags["source"] or source_of(agent, session),
            "agent": agent,
            "session": session,
            "seq": seq,
            "epoch": epoch,
            **{name: flags[name] for name in ("subject", "run", "step", "cause", "severity", "capture")},
            "data": parse_data(flags["data"]),
            **extensions,
        }
    )
