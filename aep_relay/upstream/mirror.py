"""One local emitter's stand-in at the upstream: a WebSocket of its own with that emitter's hello.

So the upstream's roster and its command gate see the truth. Events go up as they were received; a command that comes
down is handed to the emitter if it claims the session here and accepts the type.

Invariants: a pong confirms all that was sent before its ping, since frames are handled in order; one ping at a time is
on its way. A mirror that the upstream does not take, or that does not get on, leaves its Events to the POSTs, which
find out what is wrong with which Event. It ends when its emitter does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import trio

from aep_relay.protocol import frames
from aep_relay.protocol.discovery import VERSIONS
from aep_relay.protocol.errors import ProtocolError, Refusal, safe_text
from aep_relay.protocol.errors import frame as error_frame
from aep_relay.protocol.event import Event, Shape
from aep_relay.protocol.position import MAX_POSITION
from aep_relay.transport.turn import Turn
from aep_relay.upstream.errors import REFUSED, UNREACHABLE, Down, first
from aep_relay.upstream.lane import Lane

if TYPE_CHECKING:
    from aep_relay.hub.peer import Peer
    from aep_relay.upstream.push import PushLink
    from aep_relay.upstream.socket import Socket

SLICE_EVENTS: Final = 256
SLICE_BYTES: Final = 256 * 1024
"""Of one write: other tasks get a turn after it."""
PACE_SECONDS: Final = 0.005
"""Between two writes that have to be waited for."""
LEAVE_SECONDS: Final = 3.0
"""For what an emitter sent last to be confirmed, when it has left."""
MAX_FAILURES: Final = 3
"""So many connections in a row without anything confirmed, and the POSTs take over."""


class Mirror:
    """The stand-in of ``peer``."""

    def __init__(self, link: PushLink, peer: Peer) -> None:
        self._link = link
        self._ledger = link.ledger
        self._peer = peer
        self._woken = trio.Event()
        self._own = self._new_lane()
        self.lane = self._own
        """Where the emitter's Events go: its own lane, or that of the POSTs."""
        self._left = False
        self._sessions: set[str] = set()
        """What it has sent of, and claimed thereby."""
        self._pinged: tuple[int, float] | None = None
        self._failures = 0
        self.problem = ""

    def _new_lane(self) -> Lane:
        return Lane(wake=lambda: self._woken.set(), claims=True)

    def retire(self) -> None:
        """Leave what was not confirmed to the POSTs."""
        self._ledger.retire(self._own, self._link.posts.lane)

    def leave(self) -> None:
        """The emitter has left: so does the mirror, as soon as what it was given is confirmed."""
        self._left = True
        self._woken.set()

    async def run(self) -> None:
        """Keep the mirror up until its emitter has left, or cancelled."""
        backoff = self._link.backoff()
        try:
            while not self._left:
                began = trio.current_time()
                self._failed(await self._attempt())
                backoff.held(trio.current_time() - began)
                with trio.move_on_after(backoff.next_seconds()):
                    await self._wait_to_leave()
        finally:
            if self._left:
                self.retire()

    async def _wait_to_leave(self) -> None:
        while not self._left:
            self._woken = trio.Event()
            await self._woken.wait()

    def _failed(self, down: Down) -> None:
        if self._left:
            return
        self._failures += 1
        if down.detail != self.problem:
            self._link.log.warning(
                "mirror down", connection=self._peer.id, reason=down.reason, detail=down.detail
            )
        self.problem = down.detail
        if (down.reason == REFUSED or self._failures >= MAX_FAILURES) and self.lane is self._own:
            self.retire()
            self.lane = self._link.posts.lane

    async def _attempt(self) -> Down:
        """Connect and hold until something breaks, or the emitter has left; return what broke."""
        down = Down(UNREACHABLE, "ended")
        try:
            socket, _ = await self._link.open(self._hello())
            try:
                await self._hold(socket)
            finally:
                self._ledger.down(self._own)
                await socket.close(1000, "emitter-left" if self._left else "link-down")
        except* Down as group:
            down = first(group)
        return down

    def _hello(self) -> dict[str, object]:
        peer = self._peer
        return {
            "type": "hello",
            "versions": list(VERSIONS),
            "role": peer.role,
            "identity": peer.identity or {},
            "capabilities": peer.capabilities,
        }

    async def _hold(self, socket: Socket) -> None:
        self._pinged = None
        if self.lane is not self._own:
            self.lane = self._own = self._new_lane()
        self._ledger.up(self._own)
        await self._claim_again(socket)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._receive, socket)
            nursery.start_soon(self._watch, socket)
            await self._send(socket)
            nursery.cancel_scope.cancel()

    async def _claim_again(self, socket: Socket) -> None:
        """Send the newest Event of each session that was claimed over an earlier connection: that claims it again."""
        claimed = self._sessions & (self._peer.claims or set())
        again, turn = [], Turn()
        for session in claimed:
            newest = None if session in self._ledger.behind else self._newest(session)
            if newest is not None:
                again.append(newest)
            if turn.over:
                await turn.pass_on()
        payloads = await self._link.payloads(again)
        for start in range(0, len(payloads), SLICE_EVENTS):
            await socket.send(payloads[start : start + SLICE_EVENTS])

    def _newest(self, session: str) -> Event | None:
        buffer = self._link.relay.store.get(session)
        held = [] if buffer is None else buffer.below((MAX_POSITION, MAX_POSITION))
        own = (event for event in held if event.agent == self._peer.agent and self._link.matches(event))
        return next(own, None)

    async def _send(self, socket: Socket) -> None:
        """Send what there is, until the emitter has left and all is confirmed."""
        link, lane, ledger = self._link, self._own, self._ledger
        window_bytes = link.upstream.buffer_bytes // 8
        deadline, wrote_at = trio.CancelScope(), 0.0
        with deadline:
            while True:
                if self._left and deadline.deadline == float("inf"):
                    deadline.deadline = trio.current_time() + LEAVE_SECONDS
                flight = None
                if sum(flight.size_bytes for flight in lane.flying) < window_bytes:
                    flight = ledger.take(lane, SLICE_EVENTS, SLICE_BYTES)
                if flight is not None:
                    self._sessions.update({event.session for event in flight.events if event.session})
                    payloads = await link.payloads(flight.events)
                    await socket.send([*payloads, *self._ping()])
                    wrote_at = trio.current_time()
                elif lane.flying and self._pinged is None:
                    await socket.send(self._ping())
                elif self._left and lane.is_empty:
                    return
                elif lane.is_idle or lane.flying:
                    self._woken = trio.Event()
                    await self._woken.wait()
                    # A write costs as much as dozens of Events: at a high rate, more go together.
                    await trio.sleep_until(wrote_at + PACE_SECONDS)
                else:
                    await trio.lowlevel.checkpoint()

    def _ping(self) -> list[bytes]:
        """Return the ping that asks whether all has arrived, nothing while one is on its way."""
        if self._pinged is not None:
            return []
        self._pinged = (self._own.serial, trio.current_time())
        return [frames.ping(self._own.serial)]

    async def _watch(self, socket: Socket) -> None:
        """See to it that the other side is there, and end the connection if it is not."""
        answer_seconds = self._link.upstream.answer_timeout_seconds
        interval_seconds = self._link.host.limits.ping_interval_seconds
        while True:
            await trio.sleep(min(answer_seconds, interval_seconds) / 2)
            if self._pinged is None:
                if trio.current_time() - socket.heard_at >= interval_seconds / 2:
                    await socket.send(self._ping())
            elif trio.current_time() - self._pinged[1] >= answer_seconds:
                raise Down(UNREACHABLE, f"confirmed nothing for {answer_seconds:g} s")

    async def _receive(self, socket: Socket) -> None:
        host = self._link.host
        while True:
            texts = await socket.receive()
            turn = Turn()
            for text in texts:
                await self._text(text, socket)
                if turn.over or self._link.relay.crowded:
                    await host.flush()
                    await turn.pass_on()
            await host.flush()

    async def _text(self, text: bytes, socket: Socket) -> None:
        limits = self._link.host.limits
        try:
            message = frames.parse(text, limits.max_event_bytes, limits.max_frame_bytes)
        except ProtocolError:
            # Whatever it is, it is nothing that this side waits for.
            return
        if not isinstance(message, Event):
            await self._frame(message, socket)
        elif message.shape is Shape.COMMAND:
            await self._command(message, socket)

    async def _frame(self, frame: dict[str, object], socket: Socket) -> None:
        kind = frame["type"]
        if kind == "pong":
            if self._pinged is not None and frame.get("t") == self._pinged[0]:
                serial, self._pinged = self._pinged[0], None
                self._failures = 0
                self.problem = ""
                self._ledger.confirm(self._own, serial)
                self._woken.set()
        elif kind == "ping":
            await socket.send([frames.pong(frame.get("t"))])
        elif kind == "error":
            cause = frame.get("cause")
            self._link.rejected(
                cause if isinstance(cause, str) else None, f"{frame.get('code')}: {frame.get('detail')}"
            )

    async def _command(self, event: Event, socket: Socket) -> None:
        """Hand a command to the emitter, or say why not."""
        peer = self._peer
        if event.session not in (peer.claims or ()):
            refusal = Refusal("no-route", "the emitter behind this connection does not claim the session")
        elif event.type not in (peer.accepts or ()):
            refusal = Refusal("unsupported", "the emitter behind this connection does not accept this type")
        elif self._link.deliver(event, peer):
            return
        else:
            refusal = Refusal("no-route", "the emitter behind this connection has just left")
        self._link.warn("command refused", code=refusal.code, command=safe_text(event.id))
        await socket.send([msgspec.json.encode(error_frame(refusal, cause=event.id))])
