"""``GET /stream``: Events out as Server-Sent Events (AEP-0003 §3.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import trio

from aep_relay.bindings.connection import Connection
from aep_relay.hub.replay import held_bytes
from aep_relay.protocol import filters, position, sse
from aep_relay.protocol.errors import InvalidParameter, ProtocolError, http_status
from aep_relay.protocol.framing import Framing
from aep_relay.protocol.registry import CAPTURE_RANK
from aep_relay.transport.response import stream_head
from aep_relay.transport.wire import BrokenWire, Interrupted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from aep_relay.bindings.auth import Holder
    from aep_relay.bindings.service import Service
    from aep_relay.hub.limits import Limits
    from aep_relay.hub.replay import From
    from aep_relay.protocol.errors import Refusal
    from aep_relay.protocol.filters import Filter
    from aep_relay.transport.http import Request
    from aep_relay.transport.wire import Wire

SUBSCRIPTION_ID = "stream"
HEADERS = [
    ("Content-Type", "text/event-stream"),
    ("Cache-Control", "no-cache"),
    ("X-Accel-Buffering", "no"),
]
MAX_IGNORED_BYTES = 64 * 1024
"""What a client may send after its request; it has nothing to say here."""


_PINGS = {Framing.SSE: sse.chunk(sse.PING), Framing.SSE_UNCHUNKED: sse.PING}
"""The heartbeat as it is carried, made once for all."""


class Wanted(NamedTuple):
    """What a request asks to be streamed."""

    filter: Filter
    ceiling: int | None
    from_: From
    live: bool


class TooMuch(ProtocolError):
    """More than the relay's limits let one request ask for."""

    code = "limit-exceeded"


class Refused(ProtocolError):
    """What the hub refuses, for its own reasons."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.detail)
        self.code = refusal.code
        self.http_status = http_status(refusal)


def parse(request: Request, limits: Limits) -> Wanted:
    """Return what ``request`` asks for.

    Raises ``InvalidParameter``, which names the parameter, and ``TooMuch``.
    """
    query = request.query
    text = _single(query, "filter")
    filter_ = filters.EMPTY if text is None else filters.parse_json(text)
    live = _single(query, "live")
    if live not in (None, "0", "1"):
        raise InvalidParameter("live", "is neither 0 nor 1")
    from_ = _from(request)
    if from_ is not None and from_ != "all" and len(from_) > limits.resume_positions:
        raise TooMuch(f"from: more than max_from_positions, which is {limits.resume_positions}")
    if held_bytes(filter_, from_) > limits.max_subscription_bytes:
        raise TooMuch(
            f"from, filter: more than max_subscription_bytes, {limits.max_subscription_bytes}, to remember"
        )
    if from_ is None and live == "0" and filter_.sessions is not None and len(filter_.sessions) == 1:
        from_ = "all"
    return Wanted(filter_, _ceiling(query), from_, live != "0")


def _single(query: Mapping[str, list[str]], name: str) -> str | None:
    values = query.get(name)
    if values is None:
        return None
    if len(values) > 1:
        raise InvalidParameter(name, "is given more than once")
    return values[0]


def _ceiling(query: Mapping[str, list[str]]) -> int | None:
    name = _single(query, "capture")
    if name is None:
        return None
    if name not in CAPTURE_RANK:
        raise InvalidParameter("capture", f"is none of {', '.join(CAPTURE_RANK)}")
    return CAPTURE_RANK[name]


def _from(request: Request) -> From:
    text = _single(request.query, "from")
    if text is not None:
        return position.parse_from_json(text)
    last = request.get_all(b"last-event-id")
    if len(last) > 1:
        raise InvalidParameter("Last-Event-ID", "is given more than once")
    # An empty one is what a browser has before the first Event.
    return [position.parse_last_event_id(last[0])] if last and last[0] else None


def head(request: Request, headers: Iterable[tuple[str, str]]) -> bytes:
    """Return the head of the response that streams what ``request`` asks for."""
    return stream_head([*HEADERS, *headers], chunked=request.http_version == "1.1")


class Stream(Connection):
    """One consumer over SSE."""

    __slots__ = ()

    def heartbeat(self, now: float) -> None:
        """Send ``: ping``, unless more than that is pending anyway (AEP-0003 §3.3.4)."""
        peer = self._peer
        if not peer.outbox:
            peer.push(_PINGS[peer.framing])

    def framed(self, message: bytes) -> bytes:
        """Return ``message`` as this response carries it."""
        return sse.chunk(message) if self.peer.framing is Framing.SSE else message


async def serve(
    service: Service, wire: Wire, request: Request, holder: Holder, headers: list[tuple[str, str]]
) -> None:
    """Stream what ``request`` asks for until either side ends it. Raises ``ProtocolError`` before the first byte."""
    wanted = parse(request, service.limits)
    framing = Framing.SSE if request.http_version == "1.1" else Framing.SSE_UNCHUNKED
    async with trio.open_nursery() as nursery:
        stream = Stream(service, wire, nursery, "sse", framing)
        log = service.log.bind(connection=stream.peer.id, binding="sse", remote=wire.peer_name)
        refusal: Refusal | None = None
        try:
            stream.belong_to(holder)
            refusal = _subscribe(stream, wanted)
            if refusal is None:
                log.info("connection opened", **holder.named)
                stream.peer.push(head(request, headers) + stream.framed(sse.comment("stream open")))
                stream.wake()
                await _until_over(stream)
                if stream.close_reason is not None:
                    await stream.end(_farewell(stream))
        except BrokenWire:
            pass
        finally:
            stream.detach()
            nursery.cancel_scope.cancel()
            if refusal is None:
                log.info("connection closed", reason=stream.close_reason or "peer", **_counters(stream))
    if refusal is not None:
        raise Refused(refusal)


def _subscribe(stream: Stream, wanted: Wanted) -> Refusal | None:
    return stream.service.relay.subscribe(
        stream.peer, SUBSCRIPTION_ID, wanted.filter, wanted.ceiling, wanted.from_, ends=not wanted.live
    )


def _counters(stream: Stream) -> dict[str, int]:
    peer = stream.peer
    return {"delivered": peer.delivered_events, "dropped": peer.outbox.dropped_events}


async def _until_over(stream: Stream) -> None:
    """Wait for the peer to end, which is all it can say, or for this side to."""
    ignored = 0
    while stream.close_reason is None:
        try:
            data = await stream.wire.receive_some(4096)
        except Interrupted:
            continue
        if not data:
            return
        ignored += len(data)
        if ignored > MAX_IGNORED_BYTES:
            stream.service.relay.close(stream.peer, "unexpected-input", 1008)


def _farewell(stream: Stream) -> bytes:
    reason = stream.close_reason or ""
    last = b"" if reason == "replay-complete" else stream.framed(sse.comment(f"closing {reason}"))
    return last + (b"0\r\n\r\n" if stream.peer.framing is Framing.SSE else b"")
