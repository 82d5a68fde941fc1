"""Events in by ``POST /events``: in batches, again with the same ids until they are accepted (AEP-0003 §3.2).

Invariants: a batch is accepted whole or not at all, so that what has to be sent again is known exactly; a batch that
is too large for this relay is halved. POST claims no session, and commands don't go by it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import trio

from aep_relay.client.backoff import Backoff
from aep_relay.client.errors import ClientError, Refused, TimedOut, Unreachable
from aep_relay.client.http import refusal
from aep_relay.protocol.discovery import VERSIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aep_relay.client.http import Client, Response

MAX_BATCH_EVENTS: Final = 500
MAX_BATCH_BYTES: Final = 1 << 20
PATIENCE_SECONDS: Final = 60.0
"""For one batch to be accepted, all attempts together."""
UNTOLD_SECONDS: Final = 2.0
"""What passes within this time is nobody's concern; what takes longer is told once for each batch."""

_HEADERS = (("AEP-Version", VERSIONS[0]), ("Content-Type", "application/x-ndjson"))
_TOO_LARGE = 413
_PASSING = (408, 425, 429, 500, 502, 503, 504)
"""Statuses that mean: not now."""


class BadLine(Refused):
    """The relay refused one Event of a batch; ``index`` counts the batch's Events from 0."""

    def __init__(self, refused: Refused, index: int) -> None:
        super().__init__(refused.code, refused.detail, refused.advice, refused.status)
        self.index = index


class Emitter:
    """Sends Events to one relay. ``waiting`` is told why a batch is not accepted yet, and will be sent again."""

    def __init__(
        self,
        client: Client,
        patience_seconds: float = PATIENCE_SECONDS,
        waiting: Callable[[ClientError], None] | None = None,
    ) -> None:
        self._client = client
        self._patience_seconds = patience_seconds
        self._waiting = waiting
        self.retries = 0
        """How often something had to be sent again."""

    async def emit(self, events: Sequence[bytes]) -> None:
        """Send ``events``, each one line, and return when the relay has accepted them.

        Raises ``Refused`` (``BadLine`` if it is about one of them) at once, and ``Unreachable`` or ``TimedOut`` when
        patience ends. Then it is not known of the last batch whether it has arrived: sending it again is safe.
        """
        backoff = Backoff(longest_seconds=5.0)
        begun = trio.current_time()
        deadline = begun + self._patience_seconds
        waiting = self._waiting
        problem: ClientError | None = None
        while True:
            wait_seconds = 0.0
            try:
                response = await self._post(events, deadline)
                if response.status == _TOO_LARGE and len(events) > 1:
                    await self._halve(events)
                    return
                if 200 <= response.status < 300:
                    return
                problem = _problem(response)
                if response.status not in _PASSING:
                    raise problem
                wait_seconds = _retry_after(response)
            except Unreachable as error:
                problem = error
            except TimedOut as error:
                # The last attempt gets what time is left; why the ones before it failed says more.
                problem = problem or error
            self.retries += 1
            wait_seconds = max(wait_seconds, backoff.next_seconds())
            if trio.current_time() + wait_seconds >= deadline:
                raise _given_up(problem, self._patience_seconds)
            if waiting and trio.current_time() + wait_seconds >= begun + UNTOLD_SECONDS:
                waiting(problem)
                waiting = None
            await trio.sleep(wait_seconds)

    async def _post(self, events: Sequence[bytes], deadline: float) -> Response:
        seconds = max(0.1, deadline - trio.current_time())
        body = b"\n".join(events) + b"\n"
        return await self._client.ask("POST", "/events", headers=_HEADERS, body=body, seconds=seconds)

    async def _halve(self, events: Sequence[bytes]) -> None:
        middle = len(events) // 2
        await self.emit(events[:middle])
        try:
            await self.emit(events[middle:])
        except BadLine as error:
            raise BadLine(error, error.index + middle) from None


def _problem(response: Response) -> Refused:
    refused = refusal(response)
    try:
        index = msgspec.json.decode(response.body).get("index")
    except (ValueError, AttributeError, RecursionError):
        return refused
    return BadLine(refused, index) if isinstance(index, int) else refused


def _retry_after(response: Response) -> float:
    text = response.headers.get("retry-after", "")
    return float(text) if text.isdecimal() and len(text) < 6 else 0.0


def _given_up(problem: ClientError, patience_seconds: float) -> ClientError:
    if isinstance(problem, Refused):
        return TimedOut(f"not accepted within {patience_seconds:g} s: {problem.message}", problem.advice)
    return problem
