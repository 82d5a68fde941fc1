"""``aep-relay tail``: Events as they come."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import click

from aep_relay.cli.support import exits
from aep_relay.cli.support.filtering import filter_options, made
from aep_relay.cli.support.options import Common, relay_options
from aep_relay.protocol.registry import CAPTURES

if TYPE_CHECKING:
    from aep_relay.cli.support.output import Output
    from aep_relay.client.following import Follower
    from aep_relay.client.positions import State
    from aep_relay.protocol.event import Event
    from aep_relay.protocol.position import Position

SLACK_SECONDS = 60
"""By so much an emitter's clock may be behind for its new session to count as new."""


@click.command("tail", short_help="Show Events as they come.", epilog=exits.EPILOG)
@filter_options
@click.option(
    "--from", "from_", metavar="WHERE", multiple=True, help="all, now, or SESSION:EPOCH:SEQ (repeatable)."
)
@click.option(
    "--state", "state_file", metavar="FILE", type=click.Path(path_type=Path), help="Remember how far it got."
)
@click.option("--capture", type=click.Choice(CAPTURES), help="Show no more content than this.")
@click.option("--no-follow", is_flag=True, help="End after what the relay holds.")
@click.option("-n", "--count", type=click.IntRange(1), metavar="N", help="End after N Events.")
@click.option("--retry", is_flag=True, help="Wait for the relay if it is not there yet.")
@relay_options
def command(
    common: Common,
    from_: tuple[str, ...],
    state_file: Path | None,
    capture: str | None,
    no_follow: bool,
    count: int | None,
    retry: bool,
    **flags: Any,
) -> None:
    """Show Events as they come, one a line.

    The flags make an attr-match filter, and all of them have to hold; one given more than once means "any of".
    Without --from, what comes from now on is shown. --from all begins with everything that the relay holds.

    When the connection is lost it is made again, and every session goes on exactly where it was; sessions that have
    begun in the meantime are shown from their start. What the relay no longer holds is told on standard error. With
    --state that holds from one run to the next: the file is replaced as a whole, after the lines were written.

    \b
    Examples:
      aep-relay tail
      aep-relay tail --type 'attention.*' --severity notice
      aep-relay tail --session s-1 --from all --no-follow
      aep-relay tail --filter '{"type": ["tool.failed", "error.*"]}' --json
      aep-relay tail --from all --state seen.json --json >> events.jsonl
    """
    from aep_relay.client.following import Follower
    from aep_relay.client.times import moment

    filter_ = made(**flags)
    state, is_old = _state(state_file, {"filter": filter_, "capture": capture}, from_)
    sink = _Tail(common.output(), state, state_file, count)
    follower = Follower(common.target(), filter_, capture, sink, state.positions, insistent=retry)
    follower.since = None if state.since is None else moment(state.since)
    follower.resuming = is_old
    if not is_old:
        _begin(follower, from_, no_follow=no_follow)
    with sink:
        exits.run(follower.replay if no_follow else follower.follow)


class _Enough(Exception):
    """As many Events as were asked for have been shown."""


class _Tail:
    """Shows Events, and remembers them once they have been written."""

    def __init__(self, output: Output, state: State, file: Path | None, count: int | None) -> None:
        self._output = output
        self._state = state
        self._file = file
        self._left = count
        self._unsaved = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        self.save()
        return isinstance(error, _Enough)

    def event(self, event: Event) -> None:
        if self._left == 0:
            raise _Enough
        if self._output.json:
            self._output.event(event.raw)
        else:
            from aep_relay.cli.support.rows import row

            self._output.line(*row(event))
        self._unsaved = True
        if self._left is not None:
            self._left -= 1

    def tell(self, text: str) -> None:
        self._output.flush()
        exits.tell(text)

    def settle(self) -> None:
        self.save()
        if self._left == 0:
            raise _Enough

    def save(self) -> None:
        self._output.flush()
        if self._unsaved and self._file is not None:
            self._state.save(self._file)
            self._unsaved = False


def _state(file: Path | None, request: dict[str, object], from_: tuple[str, ...]) -> tuple[State, bool]:
    """Return what is known, and whether that is from an earlier run. Raises ``Misused``."""
    from aep_relay.client.errors import Misused
    from aep_relay.client.positions import State
    from aep_relay.client.times import written

    found = None if file is None else State.load(file)
    if found is None:
        since = written(datetime.now(UTC) - timedelta(seconds=SLACK_SECONDS))
        return State(request, None if "all" in from_ else since), False
    if found.request != request:
        raise Misused(
            f"{file} is the state of another request: {found.request}",
            "use one state file for each filter and capture",
        )
    return found, True


def _begin(follower: Follower, from_: tuple[str, ...], *, no_follow: bool) -> None:
    """Tell ``follower`` where to begin."""
    from aep_relay.client.positions import Known

    if from_ == ("all",):
        follower.from_all = True
    elif from_ in ((), ("now",)):
        if no_follow:
            follower.from_all, follower.since = True, None
    else:
        for text in from_:
            session, position = _point(text)
            follower.positions.sessions[session] = Known(position)


def _point(text: str) -> tuple[str, Position]:
    from aep_relay.protocol.errors import InvalidParameter
    from aep_relay.protocol.position import parse_last_event_id

    try:
        point = parse_last_event_id(text)
    except InvalidParameter:
        raise click.BadParameter(
            f"{text} is neither all, now nor SESSION:EPOCH:SEQ", param_hint="--from"
        ) from None
    return point.session, point.position
