"""``aep-relay run``: supervise an agent process that speaks stdio."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING

import click

from aep_relay.cli.support.embedding import (
    Place,
    dialect_of,
    dialect_option,
    epoch_seed,
    place_options,
    run_embedded,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


@click.command(
    "run",
    short_help="Run an agent that speaks on its pipes.",
    context_settings={"allow_interspersed_args": False},
)
@click.option("--agent", metavar="NAME", help="Who it is.  [default: the command's name]")
@click.option("--session", metavar="NAME", help="The session it emits.  [default: a new one]")
@click.option(
    "--accepts", metavar="TYPE", multiple=True, help="A type of command that it takes (repeatable)."
)
@dialect_option("What its input speaks; auto: what it speaks itself.")
@click.option("--restart", is_flag=True, help="Start it again when it fails, after a wait that grows.")
@click.option(
    "--grace",
    type=click.IntRange(0, 86_400),
    # docker and supervisord kill after 10 seconds, and the relay drains when the process has ended.
    default=5,
    show_default=True,
    metavar="SECONDS",
    help="Kill it so long after it was told to end.",
)
@place_options
@click.argument("words", metavar="COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
def command(
    place: Place, agent: str | None, session: str | None, accepts: Sequence[str], dialect: str, restart: bool,
    grace: int, words: Sequence[str],
) -> None:  # fmt: skip
    """Run COMMAND with a relay around it: Events on its output go in, commands to its session go to its input.

    Lines are Events of AEP-0001, or of the stdio dialect (aep_version), which are mapped. Its session is claimed as
    long as it runs (with --relay, from its first Event on), so that commands of a type it --accepts reach it. When it
    ends without saying so, session.ended says it. Signals are passed on, its standard error is passed through, its
    exit code is the result. It is killed when it has not ended --grace seconds after SIGINT or SIGTERM, and by a second
    one at once.

    \b
    Example:
      aep-relay run --agent builder --accepts control.cancel -- ./agent --verbose
    """
    from aep_relay.bindings.supervise import Supervisor, Task
    from aep_relay.config.capturing import adapter
    from aep_relay.protocol.dialect import DialectMapper

    target = place.target()
    config = place.config(listens=target is None)
    task = Task(
        words,
        agent or Path(words[0]).name or "agent",
        session or f"run-{secrets.token_hex(6)}",
        frozenset(accepts),
        dialect_of(dialect),
        restart,
        grace,
    )
    mapper = DialectMapper(
        agent=task.agent, session=task.session, epoch_seed=epoch_seed(), adapter=adapter(config.capture)
    )
    supervisor = Supervisor(task, mapper)
    if target is None:
        run_embedded(config, supervisor, config.log.level)
    from aep_relay.cli.support.bridging import Bridge

    routed: dict[str, object] = {"session": task.session, "type": "attention.routed"}
    bridge = Bridge(supervisor, target, agent=task.agent, accepts=accepts, subscribe=routed, lasting=True)
    run_embedded(config, bridge, config.log.level, [target.token] if target.token else [])
