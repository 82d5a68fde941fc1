"""How a command ends: the exit codes, and one line or two on standard error about why.

0    done
2    usage: what was asked for makes no sense as it stands, or the configuration has to be put right
3    refused, by the relay, by an agent, or by a check; the reason is on standard error
4    timed out: the relay is there, and no answer came
5    unreachable: there is no relay at the other end
130  interrupted (128 and the signal's number)
"""

from __future__ import annotations

import errno
import functools
import os
import signal
import sys
from typing import TYPE_CHECKING, Final, NoReturn, ParamSpec

import click

from aep_relay import stderr
from aep_relay.cli.support.text import shown

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import trio

    from aep_relay.client.errors import ClientError

    P = ParamSpec("P")
else:
    P = ParamSpec("P")

DONE: Final = 0
USAGE: Final = 2
REFUSED: Final = 3
TIMED_OUT: Final = 4
UNREACHABLE: Final = 5

EPILOG: Final = (
    "Exit codes: 0 done; 2 usage; 3 refused, with the reason on standard error; 4 timed out; 5 unreachable; "
    "130 interrupted."
)
"""For the help of every command that talks to a relay."""


def tell(text: str) -> None:
    """Write one line to standard error."""
    click.echo(f"aep-relay: {shown(' '.join(text.split()))}", err=True)


def waiting(error: ClientError) -> None:
    """Tell that what ``error`` is about will be tried again."""
    tell(f"{error.message}; trying again")


def end(code: int, message: str, advice: str | None = None) -> NoReturn:
    """End the process with ``code``, saying why and what to do next."""
    tell(message)
    if advice:
        click.echo(f"  what next: {shown(advice)}", err=True)
    raise SystemExit(code)


def cannot_listen(error: OSError, advice: str) -> NoReturn:
    """End the process because ``error`` keeps it from listening; ``advice`` is for an address that is taken."""
    where = f" ({error.filename})" if error.filename else ""
    end(
        USAGE,
        f"cannot listen: {error.strerror or error}{where}",
        advice if error.errno == errno.EADDRINUSE else None,
    )


def ending(function: Callable[P, None]) -> Callable[P, None]:
    """Have a command end as documented, whatever comes of it."""

    @functools.wraps(function)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
        from aep_relay.client.errors import ClientError

        try:
            try:
                function(*args, **kwargs)
            finally:
                sys.stdout.flush()
        except click.UsageError as error:
            # It may quote what an Event holds.
            raise click.UsageError(shown(error.format_message())) from None
        except ClientError as error:
            end(code_of(error), error.message, error.advice)
        except KeyboardInterrupt:
            raise SystemExit(128 + signal.SIGINT) from None
        except BrokenPipeError:
            # Whoever read the output has had enough.
            _drop_output()
            raise SystemExit(DONE) from None
        except OSError as error:
            _drop_output()
            where = f" ({os.fsdecode(error.filename)})" if isinstance(error.filename, str | bytes) else ""
            end(USAGE, f"{error.strerror or error}{where}")

    return guarded


def _drop_output() -> None:
    """Have what is still buffered not fail once more at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def code_of(error: Exception) -> int:
    """Return the exit code for a ``ClientError``."""
    from aep_relay.client import errors

    for kind, code in (
        (errors.Misused, USAGE),
        (errors.Refused, REFUSED),
        (errors.TimedOut, TIMED_OUT),
        (errors.Unreachable, UNREACHABLE),
    ):
        if isinstance(error, kind):
            return code
    raise error


def run(work: Callable[[], Awaitable[None]]) -> None:
    """Run ``work`` under Trio, until it is done or a signal ends it."""
    import trio

    from aep_relay.client.socket import only

    ended_by: list[int] = []

    async def watched() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_end_on_signal, nursery.cancel_scope, ended_by)
            await work()
            nursery.cancel_scope.cancel()

    try:
        trio.run(watched)
    except BaseExceptionGroup as group:
        raise only(group) from None
    if ended_by:
        raise SystemExit(128 + ended_by[0])


async def _end_on_signal(scope: trio.CancelScope, ended_by: list[int]) -> None:
    import trio

    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for number in signals:
            if ended_by:
                stderr.finish()
                os._exit(128 + number)
            ended_by.append(number)
            scope.cancel()
