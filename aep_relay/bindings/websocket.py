"""``/socket``: Events, commands and frames over WebSocket (AEP-0003 §3.5, §4, §6.5).

What RFC 6455 makes of incoming frames is in ``messages``; outgoing frames are the hub's. What arrives is handled
message by message: an error is answered in-band and the connection survives, but for what RFC 6455
or the hello rule make final.
"""

from __future__ import annotations

import time
from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec
import trio
from websockets.frames import CloseCode

from aep_relay.bindings import chained, greeting, requests
from aep_relay.bindings.connection import Connection
from aep_relay.bindings.handshake import handshake
from aep_relay.bindings.messages import Messages
from aep_relay.protocol import frames
from aep_relay.protocol.errors import (
    HelloRequired,
    ProtocolError,
    Refusal,
)
from aep_relay.protocol.errors import frame as error_frame
from aep_relay.protocol.event import Event, Shape, decode_together
from aep_relay.protocol.framing import Framing
from aep_relay.protocol.hello import answer
from aep_relay.transport import large
from aep_relay.transport.attendant import READ_BYTES
from aep_relay.transport.turn import Turn
from aep_relay.transport.wire import BrokenWire, Interrupted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from websockets.server import ServerProtocol

    from aep_relay.bindings.auth import Holder
    from aep_relay.bindings.chained import Chained
    from aep_relay.bindings.service import Service
    from aep_relay.protocol.hello import Hello
    from aep_relay.transport.http import Request
    from aep_relay.transport.wire import Wire

ALONE_TEXTS = 1_000
"""So many texts are looked at one by one when some could not be taken together."""

FEW_WORDS = 3
"""What a consumer says until it only listens, hello included, comes in so many pieces at most."""

_COMMAND = Shape.COMMAND  # once: each look at it takes 0.1 µs
_REASONS = {CloseCode.MESSAGE_TOO_BIG: "message-too-big"}
"""Why the core fails a connection, where it is not that the peer broke RFC 6455."""


class Socket(Connection):
    """One WebSocket connection."""

    __slots__ = (
        "_alone",
        "_hurried",
        "_large",
        "_messages",
        "_pause",
        "_pause_seconds",
        "_steps",
        "chained",
        "hello",
        "protocol",
    )

    def __init__(self, service: Service, wire: Wire, nursery: trio.Nursery, protocol: ServerProtocol) -> None:
        super().__init__(service, wire, nursery, "websocket", Framing.WEBSOCKET)
        self.protocol = protocol
        self._messages = Messages(protocol)
        self.hello: Hello | None = None
        self.chained: Chained | None = None
        """What the link of another relay adds."""
        self._alone = 0
        """So many texts are looked at one by one before it is tried again to take them together."""
        self._large: Event | None = None
        """Decoded, and still to be ingested."""
        self._steps: Iterator[None] | None = None
        """What is left to do of what the peer asked for, in steps between which others have their turns."""
        self._pause: trio.CancelScope | None = None
        self._pause_seconds = 0.0
        self._hurried = False
        """Whether the connection is about to end: then nothing is paced any more."""
        self.peer.greeted = False
        self.deadline = self.heard_at + service.limits.hello_timeout_seconds
        service.deadlines.watch(self)

    def detach(self) -> None:
        """Leave the hub, at once and for good, and let go of what was received in part."""
        super().detach()
        if self.chained is not None:
            self.chained.end()
        # The core and its parser hold each other, and so does what went wrong.
        self.protocol.parser.close()
        self.protocol.parser_exc = None

    def heartbeat(self, now: float) -> None:
        """Send ``ping``, or end a connection that has been silent for too long (AEP-0003 §3.5.5)."""
        limits = self.service.limits
        if self.hello is None:
            self.refuse(HelloRequired(f"no hello came within {limits.hello_timeout_seconds:g} seconds"))
            self._fail("hello-timeout", CloseCode.POLICY_VIOLATION)
            return
        if self._pause is not None:
            # Nobody listens: that is not the peer's doing.
            self.heard_at = now
        silent_at = self.heard_at + limits.ping_timeout_seconds
        if now >= silent_at:
            self._fail("ping-timeout", CloseCode.POLICY_VIOLATION)
            return
        if not self._peer.outbox:
            self._peer.push(_ping(int(time.time() * 1000)))
        if silent_at < self.deadline:
            self.deadline = silent_at

    async def run(self, data: bytes) -> None:
        """Handle what the peer sends, beginning with ``data``, until either side ends."""
        wire, idle, words = self.wire, False, 0
        while self.close_reason is None:
            if data:
                idle = self._is_pong(data)
                words = 0 if idle else words + 1
                if not idle:
                    await self._feed(data)
                    if self.protocol.close_rcvd is not None or self.close_reason is not None:
                        return
                    # Consumers are here to listen, once they have said to what.
                    idle = words <= FEW_WORDS and self.peer.role == "consumer" and len(data) < READ_BYTES
            try:
                # Who has answered a ping, and said nothing else, is most likely to say nothing else next time; to be
                # woken by the attendant after all costs as much again as to be woken by the wire.
                data = await (
                    wire.receive_beyond(self.service.attendant, self._is_pong)
                    if idle
                    else wire.receive_some()
                )
            except Interrupted:
                data = b""
                continue
            if not data:
                return
            self.heard_at = trio.current_time()

    def _is_pong(self, data: bytes) -> bool:
        """Whether ``data`` is a ``pong`` and nothing else: it is a sign of life, and asks for nothing."""
        if self.hello is None:
            return False
        text = self._messages.incoming.sole(data)
        if text is None or not frames.is_pong(text):
            return False
        self.heard_at = trio.current_time()
        return True

    async def _feed(self, data: bytes) -> None:
        protocol = self.protocol
        turn = Turn()
        for texts in self._messages.feed(data):
            if self.close_reason is not None:
                break
            if texts is None:
                self._reply()
                self.refuse(Refusal("binary-unsupported", "binary frames are reserved in AEP 0.1"))
                self._fail("binary-unsupported", CloseCode.UNSUPPORTED_DATA)
            elif texts:
                self._reply()
                await self._texts(texts, turn)
            else:
                await self._settle(turn)
        self._reply()
        self._messages.keep_close()
        if protocol.parser_exc is not None and self.close_reason is None:
            code = protocol.close_sent.code if protocol.close_sent else CloseCode.PROTOCOL_ERROR
            self._fail(_REASONS.get(CloseCode(code), "protocol-error"), code)
        await self.service.flush()

    async def _texts(self, texts: list[bytes], turn: Turn) -> None:
        """Handle text messages that have come together: Events at once, where they can be."""
        relay = self.service.relay
        events = self._together(texts)
        at = 0
        while at < len(texts) and self.close_reason is None:
            if events is None:
                self._text(texts[at])
                taken = 1
            elif not (taken := relay.ingest_burst(events, at, self.peer)):
                self._event(events[at])
                taken = 1
            at += taken
            if (
                self._large is not None
                or self._steps is not None
                or self._pause_seconds
                or turn.over
                or relay.crowded
            ):
                await self._settle(turn)

    def _together(self, texts: list[bytes]) -> list[Event] | None:
        """Return the Events that ``texts`` are, None where each has to be looked at by itself."""
        if len(texts) < 2 or self.hello is None or self._alone:
            self._alone = max(0, self._alone - len(texts))
            return None
        grants, rated = self.peer.grants, self.holder is not None and self.holder.rate is not None
        if rated or (grants is not None and not grants.emits_all):
            return None
        events = decode_together(texts, b"\n".join(texts), self.service.limits.max_event_bytes)
        if events is None:
            # A peer that writes otherwise does so again: to try each time would be for nothing.
            self._alone = ALONE_TEXTS
        return events

    async def _settle(self, turn: Turn) -> None:
        """Do what the last message has left to do, and let others have their turn when this one is over."""
        service = self.service
        if self._large is not None:
            event, self._large = self._large, None
            await large.prepare(service.relay.fanout, event)
            if self.close_reason is None:
                self._ingest(event)
        elif self._steps is not None:
            await self._finish(turn)
        if service.relay.crowded:
            await service.flush()
        if self._pause_seconds:
            await self._keep_to_rate()
        if turn.over:
            # However small the frames, and whatever each of them asks for.
            await service.flush()
            await turn.pass_on()

    async def _finish(self, turn: Turn) -> None:
        """Do the rest of what the peer asked for; what it sent behind that waits, so that it is answered in order."""
        steps, self._steps = self._steps, None
        try:
            for _ in steps or ():
                if turn.over:
                    await self.service.flush()
                    await turn.pass_on()
                if self.close_reason is not None:
                    return
        except ProtocolError as error:
            self.refuse(error, getattr(error, "request_id", None))

    def _reply(self) -> None:
        """Send the pongs that RFC 6455 owes the peer, ahead of the answers to what came behind its pings."""
        if pongs := self._messages.take_pongs():
            self.peer.push(pongs)

    async def _keep_to_rate(self) -> None:
        """Take nothing more in until the token allows another Event; what the peer sends waits in its socket."""
        self._reply()
        await self.service.flush()
        with trio.move_on_after(self._pause_seconds) as self._pause:
            self._pause_seconds = 0.0
            if not self._hurried:
                await trio.sleep_forever()
        self._pause = None
        self.heard_at = trio.current_time()

    def interrupt(self) -> None:
        """Call the reader off its wait for the peer, or for the token's rate."""
        super().interrupt()
        self._hurried = True
        if self._pause is not None:
            self._pause.cancel()

    def _text(self, text: bytes) -> None:
        """Handle one text message (AEP-0003 §2)."""
        if not text.isascii():
            try:
                text.decode("utf-8")
            except UnicodeDecodeError:
                self._fail("not-utf-8", CloseCode.INVALID_DATA)
                return
        limits = self.service.limits
        try:
            if self.hello is None and len(text) > limits.max_hello_bytes:
                raise HelloRequired(f"max_hello_bytes: hello is at most {limits.max_hello_bytes} bytes")
            message = frames.parse(text, limits.max_event_bytes, limits.max_frame_bytes)
            if self.hello is None:
                self._greet(message)
            elif isinstance(message, Event):
                self._event(message)
            else:
                self._steps = requests.handle(self, message)
        except ProtocolError as error:
            if self.hello is None:
                self._refuse_greeting(error)
            else:
                self.refuse(error, getattr(error, "request_id", None))

    def refuse(
        self, problem: ProtocolError | Refusal, id_: str | None = None, cause: str | None = None
    ) -> None:
        """Answer in-band with an ``error`` frame (AEP-0003 §6.5)."""
        if isinstance(problem, ProtocolError):
            self.service.relay.stats.refused(problem.code)
        self.peer.push(frames.text_frame(msgspec.json.encode(error_frame(problem, id=id_, cause=cause))))

    def _fail(self, reason: str, code: int) -> None:
        self.service.relay.close(self.peer, reason, code)

    def _greet(self, message: Event | dict[str, object]) -> None:
        """Take the peer's hello and answer with ours (AEP-0003 §4)."""
        service, peer = self.service, self.peer
        hello = self.hello = greeting.take(message, peer, service.inspector)
        limits = service.limits
        # With room for what is refused in-band, so that the peer learns which of its messages is too large.
        self.protocol.max_message_size = 2 * max(limits.max_event_bytes, limits.max_frame_bytes)
        found = self.chained = chained.of(service, self._nursery, peer, hello)
        capabilities = service.capabilities if found is None else found.capabilities()
        peer.push(frames.text_frame(answer(hello.version, service.relay.instance, capabilities)))
        self.deadline = trio.current_time() + self.interval_seconds
        service.deadlines.watch(self)
        self.log_opened()
        if found is not None:
            found.begin()

    def _refuse_greeting(self, error: ProtocolError) -> None:
        problem, reason, code = greeting.refusal(error)
        self.refuse(problem)
        self._fail(reason, code)

    def _event(self, event: Event) -> None:
        peer = self.peer
        if self.holder is not None and self.holder.rate is not None:
            self._pause_seconds = self.holder.rate.spend(1, trio.current_time())
        refusal: Refusal | None = None
        if peer.grants is not None and event.shape is not _COMMAND:
            refusal = peer.grants.refuse_event(event)
        if refusal is not None:
            self.refuse(refusal, cause=event.id)
        elif len(event.raw) >= large.LARGE_BYTES:
            self._large = event
        else:
            self._ingest(event)

    def _ingest(self, event: Event) -> None:
        refusal = self.service.relay.ingest(event, self.peer)
        if refusal is not None:
            self.refuse(refusal, cause=event.id)

    def log_opened(self) -> None:
        """Say who has come, as far as it is known."""
        peer, hello = self.peer, self.hello
        self.service.log.info(
            "connection opened",
            connection=peer.id,
            binding="websocket",
            remote=peer.name,
            role=None if hello is None else hello.role,
            agent=peer.agent,
            **({} if self.holder is None else self.holder.named),
            **({} if peer.card is None else {"card": peer.card["status"]}),
        )

    def farewell(self) -> bytes:
        """Return the close frame this side still owes the peer."""
        return self._messages.farewell(self.close_reason, self.close_code)


@lru_cache(maxsize=1)
def _ping(t: int) -> bytes:
    """Return the ping of the millisecond ``t``, which goes to many."""
    return frames.text_frame(frames.ping(t))


async def serve(service: Service, wire: Wire, request: Request, rest: bytes, holder: Holder) -> None:
    """Speak WebSocket on ``wire`` until either side ends it. Raises ``ProtocolError`` if the handshake fails."""
    # A peer that has not greeted yet may have a frame pending, and no more.
    limits = service.limits
    protocol, accepted = handshake(request, max(limits.max_frame_bytes, limits.max_hello_bytes))
    async with trio.open_nursery() as nursery:
        socket = Socket(service, wire, nursery, protocol)
        try:
            # In one step with the check that there is room for it.
            socket.belong_to(holder)
            socket.peer.push(accepted)
            await socket.run(rest)
            if socket.close_reason is None:
                service.relay.left(socket.peer)
            await socket.end(socket.farewell())
        except BrokenWire:
            pass
        finally:
            socket.detach()
            nursery.cancel_scope.cancel()
            peer = socket.peer
            if socket.hello is None:
                socket.log_opened()
            service.log.info(
                "connection closed",
                connection=peer.id,
                binding="websocket",
                remote=peer.name,
                reason=socket.close_reason or "peer",
                received=peer.received_events,
                delivered=peer.delivered_events,
                dropped=peer.outbox.dropped_events,
            )
