"""Commands up a pull: for sessions that the link has fed and nobody here claims (AEP-0004 §4).

Invariants: a command goes up as the bytes it came in, and only over a link with a token, since commands need an
authenticated connection. The upstream's refusal goes to who sent the command, as it came, ``cause`` and all; one that
could not be sent is refused here.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Final

import msgspec
import trio

from aep_relay.protocol import frames
from aep_relay.protocol.errors import Refusal
from aep_relay.protocol.errors import frame as error_frame
from aep_relay.protocol.framing import Framing

if TYPE_CHECKING:
    from typing import NoReturn

    from aep_relay.hub.peer import Peer
    from aep_relay.hub.relay import Relay
    from aep_relay.protocol.event import Event
    from aep_relay.upstream.socket import Socket

MAX_COMMANDS: Final = 1000
"""Commands that wait to be sent, and senders that may still be owed a refusal."""


class Forwarding:
    """Commands of one link. A ``hub.hooks.Uplink``."""

    def __init__(self, relay: Relay, *, has_token: bool) -> None:
        self._relay = relay
        self.has_token = has_token
        self._fed: OrderedDict[str, None] = OrderedDict()
        self._waiting: deque[Event] = deque()
        self._woken = trio.Event()
        self._senders: OrderedDict[str, Peer] = OrderedDict()
        self.is_open = False
        self.forwarded_commands = 0

    def fed(self, session: str) -> None:
        """Note that an Event of ``session`` has come down."""
        fed = self._fed
        if session not in fed and len(fed) >= 4 * self._relay.limits.max_sessions:
            fed.popitem(last=False)
        fed[session] = None

    def feeds(self, session: str) -> bool:
        """Whether Events of ``session`` have come down."""
        return session in self._fed

    def forward(self, event: Event, sender: Peer) -> bool:
        """Send a command up if this is the way (``Uplink``)."""
        if not (self.is_open and self.has_token) or event.session not in self._fed:
            return False
        if len(self._waiting) >= MAX_COMMANDS:
            return False
        self._waiting.append(event)
        self._senders.pop(event.id, None)
        self._senders[event.id] = sender
        if len(self._senders) > MAX_COMMANDS:
            self._senders.popitem(last=False)
        self._woken.set()
        return True

    async def send(self, socket: Socket) -> NoReturn:
        """Send what is to go up, as it comes. Raises ``Down``."""
        self.is_open = True
        try:
            while True:
                while self._waiting:
                    await socket.send([self._waiting[0].raw])
                    self._waiting.popleft()
                    self.forwarded_commands += 1
                self._woken = trio.Event()
                await self._woken.wait()
        finally:
            self.is_open = False
            self._fail()

    def _fail(self) -> None:
        """Refuse what could not be sent."""
        for event in self._waiting:
            refusal = Refusal("no-route", "the link to the relay that knows this session has just broken")
            self._hand(event.id, msgspec.json.encode(error_frame(refusal, cause=event.id)))
        self._waiting.clear()

    def refused(self, cause: str, frame: bytes) -> None:
        """Hand the upstream's refusal, an ``error`` frame, to who sent the command ``cause``."""
        self._hand(cause, frame)

    def _hand(self, cause: str, frame: bytes) -> None:
        sender = self._senders.pop(cause, None)
        if sender is not None and sender.closing is None and sender.framing is Framing.WEBSOCKET:
            sender.push(frames.text_frame(frame))
