"""Commands: sent over an authenticated WebSocket, again with the same id until they are acknowledged (AEP-0004 §3).

The target's acknowledgement is an Event of its session whose ``cause`` is the command's id, so it is subscribed to
before the command goes out. Invariants: a command is the same bytes in every attempt; an outcome is one of four.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import trio

from aep_relay.client.backoff import Backoff
from aep_relay.client.errors import ADVICE, Refused, TimedOut, Unreachable
from aep_relay.client.payload import payload
from aep_relay.client.socket import open_socket
from aep_relay.protocol.errors import safe_text
from aep_relay.protocol.event import Event

if TYPE_CHECKING:
    from collections.abc import Callable

    from aep_relay.client.socket import Socket
    from aep_relay.client.target import Target

ATTEMPTS: Final = 3
DEFAULT_WINDOW_SECONDS: Final = 10.0
LONGEST_WINDOW_SECONDS: Final = 120.0

ACCEPTED: Final = "accepted"
REJECTED: Final = "rejected"
REFUSED: Final = "refused"
TIMED_OUT: Final = "timed out"
ROUTED: Final = "routed"

_SILENT = (
    "the agent got it, and may still act: look with `aep-relay timeline`, or send again with the same --id"
)
_ANSWERS = {"control.accepted": ACCEPTED, "control.rejected": REJECTED}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a command: accepted or rejected by its target, refused by the relay, or timed out.

    ``routed`` is what is known of one that nobody waits for.
    """

    status: str
    attempts: int
    reason: str = ""
    detail: str = ""
    advice: str | None = None


@dataclass(slots=True)
class Commander:
    """Sends one command, the Event ``event``.

    Without ``window_seconds`` each attempt waits as long as the target declares (AEP-0003 §4), or 10 s. ``tell`` is
    told of every attempt but the first.
    """

    target: Target
    event: Event
    window_seconds: float | None = None
    attempts: int = ATTEMPTS
    wait: bool = True
    tell: Callable[[str], None] = lambda text: None
    made: int = 0
    """Attempts so far."""

    async def run(self) -> Outcome:
        """Return what becomes of the command.

        Raises ``Unreachable`` or ``TimedOut`` if it never got to the relay, ``Refused`` if the connection or the
        subscription to the acknowledgement is refused.
        """
        backoff = Backoff(longest_seconds=5.0)
        for last in range(self.attempts):
            try:
                async with open_socket(self.target) as socket:
                    return await self._send(socket)
            except (Unreachable, TimedOut) as error:
                problem = error
            if self.made >= self.attempts or last == self.attempts - 1:
                break
            self.tell(problem.message)
            await trio.sleep(backoff.next_seconds())
        if self.made == 0:
            raise problem
        return Outcome(TIMED_OUT, self.made, detail=problem.message)

    async def _send(self, socket: Socket) -> Outcome:
        if not self.wait:
            self.made += 1
            await socket.say(self.event.raw)
            await socket.fence()
            while (item := socket.receive_nowait()) is not None:
                if (outcome := self._outcome(item)) is not None:
                    return outcome
            return Outcome(ROUTED, self.made)
        await self._watch(socket)
        window_seconds = self.window_seconds or await self._declared_seconds(socket)
        while self.made < self.attempts:
            self.made += 1
            if self.made > 1:
                self.tell(f"attempt {self.made} of {self.attempts}, with the same id")
            await socket.say(self.event.raw)
            with trio.move_on_after(window_seconds):
                while True:
                    outcome = self._outcome(await socket.receive())
                    if outcome is not None:
                        return outcome
        detail = f"no acknowledgement within {window_seconds:g} s, {self.made} times"
        return Outcome(TIMED_OUT, self.made, detail=detail, advice=_SILENT)

    async def _watch(self, socket: Socket) -> None:
        """Subscribe to the acknowledgement, one that came while the connection was lost included."""
        filter_: dict[str, object] = {
            "session": self.event.session,
            "cause": self.event.id,
            "type": list(_ANSWERS),
        }
        try:
            await socket.subscribe(filter_, "all")
        except Refused as error:
            if error.code != "unauthorized":
                raise
            text = "send without waiting for the acknowledgement, which this token may not see: --no-wait"
            raise Refused(error.code, error.detail, text) from None

    async def _declared_seconds(self, socket: Socket) -> float:
        """Return how long the target says that an acknowledgement takes at most."""
        for entry in await socket.roster():
            control = entry.get("control")
            declared = control.get("ack_window_ms") if isinstance(control, dict) else None
            if entry.get("session") != self.event.session or isinstance(declared, bool):
                continue
            if isinstance(declared, int | float) and math.isfinite(declared) and declared > 0:
                return float(min(declared / 1000, LONGEST_WINDOW_SECONDS))
        return DEFAULT_WINDOW_SECONDS

    def _outcome(self, item: Event | dict[str, object]) -> Outcome | None:
        """Return what ``item`` says of the command, if it is about it."""
        if isinstance(item, Event):
            status = _ANSWERS.get(item.type) if item.cause == self.event.id else None
            if status is None:
                return None
            data = payload(item)
            return Outcome(status, self.made, _text(data, "reason"), _text(data, "detail"))
        if item.get("type") == "error" and item.get("cause") == self.event.id:
            code = _text(item, "code")
            return Outcome(REFUSED, self.made, code, _text(item, "detail"), ADVICE.get(code))
        return None


def _text(members: dict[str, Any], name: str) -> str:
    value = members.get(name)
    return safe_text(value) if isinstance(value, str) else ""
