"""Sending one command and telling what became of it: the same for every command that does."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from aep_relay.cli.support import exits
from aep_relay.cli.support.making import AGENT, make, new_id, source_of
from aep_relay.cli.support.options import Common, complete_session, relay_options

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aep_relay.client.commanding import Outcome
    from aep_relay.protocol.event import Event

session_argument = click.argument("session", shell_complete=complete_session)


@dataclass(frozen=True, slots=True)
class Sending:
    """What the options say about how a command is sent."""

    common: Common
    agent: str
    id: str | None
    attempts: int
    window: float | None
    no_wait: bool

    def command(self, type_: str, session: str, attributes: Mapping[str, object]) -> Event:
        """Return the command. Raises ``click.UsageError``."""
        from aep_relay.client.times import now
        from aep_relay.protocol.registry import is_command

        if not is_command(type_):
            raise click.UsageError(f"{type_} is no type of command; emit it with `aep-relay emit`")
        return make(
            {
                "id": self.id or new_id(),
                "type": type_,
                "time": now(),
                "source": source_of(self.agent),
                "agent": self.agent,
                "session": session,
                **attributes,
            }
        )

    def send(self, type_: str, session: str, **attributes: object) -> None:
        """Send a command, tell what becomes of it, and end accordingly."""
        self.send_event(self.command(type_, session, attributes))

    def send_event(self, event: Event) -> None:
        """Send a command that is made already."""
        from aep_relay.client.commanding import Commander

        commander = Commander(
            self.common.target(),
            event,
            self.window,
            self.attempts,
            wait=not self.no_wait,
            tell=exits.tell,
        )
        outcomes: list[Outcome] = []

        async def work() -> None:
            outcomes.append(await commander.run())

        exits.run(work)
        self._tell(event, outcomes[0])

    def _tell(self, event: Event, outcome: Outcome) -> None:
        from aep_relay.client import commanding

        output = self.common.output()
        about = f"{event.type} to session {event.session}"
        said = ": ".join(part for part in (outcome.reason, outcome.detail) if part)
        if output.json:
            output.document(
                {
                    "status": outcome.status,
                    "id": event.id,
                    "type": event.type,
                    "session": event.session,
                    "attempts": outcome.attempts,
                    "reason": outcome.reason,
                    "detail": outcome.detail,
                }
            )
        elif outcome.status in (commanding.ACCEPTED, commanding.ROUTED):
            output.line(f"{outcome.status}: {about}")
        output.flush()
        if outcome.status in (commanding.REJECTED, commanding.REFUSED):
            who = "the agent" if outcome.status == commanding.REJECTED else "the relay"
            exits.end(exits.REFUSED, f"{about} {outcome.status} by {who}: {said}", outcome.advice)
        if outcome.status == commanding.TIMED_OUT:
            exits.end(exits.TIMED_OUT, f"{about} timed out: {said}", outcome.advice)


def sending_options(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of everything that sends one, as its argument ``sending``."""

    @functools.wraps(function)
    def wrapped(common: Common, **given: Any) -> None:
        shared = {name: given.pop(name) for name in ("agent", "id_", "attempts", "window", "no_wait")}
        shared["id"] = shared.pop("id_")
        function(sending=Sending(common, **shared), **given)

    made: Callable[..., None] = relay_options(wrapped)
    for option in reversed(_OPTIONS):
        made = option(made)
    return made


def plain_command(verb: str, purpose: str, asked: str) -> click.Command:
    """Return the command that sends ``control.{verb}``, which says no more than whom it is for."""

    @click.command(
        verb,
        short_help=purpose,
        epilog=exits.EPILOG,
        help=f"""Ask the agent of SESSION to {asked}.

        What that means is the agent's matter: accepted says that it will, and its Events say what it does. See
        `aep-relay send` for how a command is sent.

        \b
        Examples:
          aep-relay {verb} s-1
          aep-relay {verb} s-1 --window 2 --json
        """,
    )
    @session_argument
    @click.option("--run", metavar="NAME", help="The run it is about.")
    @sending_options
    def command(sending: Sending, session: str, run: str | None) -> None:
        sending.send(f"control.{verb}", session, run=run)

    return command


_OPTIONS = (
    click.option("--agent", metavar="NAME", default=AGENT, show_default=True, help="Who sends it."),
    click.option(
        "--id", "id_", metavar="TEXT", help="Its id, to send a command again that timed out.  [default: new]"
    ),
    click.option(
        "--attempts", type=click.IntRange(1, 100), default=3, show_default=True, help="How often to send it."
    ),
    click.option(
        "--window",
        type=click.FloatRange(0.01, 3600),
        metavar="SECONDS",
        help="How long to wait for the acknowledgement each time.  [default: what the agent declares, or 10]",
    ),
    click.option("--no-wait", is_flag=True, help="End as soon as the relay has passed it on."),
)
