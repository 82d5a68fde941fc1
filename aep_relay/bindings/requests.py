"""What a WebSocket peer can ask for, and how it is answered: in order, and in steps where that takes long.

Every frame of another type is ignored: it needs no answer, or a later revision knows it. AEP-0003 §3.5, §6.5.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aep_relay.hub import feeders
from aep_relay.protocol import frames
from aep_relay.protocol.errors import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aep_relay.bindings.websocket import Socket

    Frame = dict[str, object]
    Steps = Iterator[None] | None


def handle(socket: Socket, frame: Frame) -> Steps:
    """Answer ``frame``, a valid one, or return what is left to do for that, in steps between which others have their
    turns. Raises ``ProtocolError``, as do the steps.
    """
    handler = _HANDLERS.get(str(frame["type"]))
    return None if handler is None else handler(socket, frame)


def _subscribe(socket: Socket, frame: Frame) -> Iterator[None]:
    # With ten thousand positions, each of these takes some milliseconds: reading them, judging them, taking them.
    yield
    request = frames.parse_subscribe(frame)
    yield
    peer = socket.peer
    refusal: Refusal | None
    if peer.role == "emitter":
        refusal = Refusal("unauthorized", "an emitter connection may not subscribe")
    else:
        refusal = socket.service.relay.subscribe(
            peer, request.id, request.filter, request.ceiling, request.from_, others=request.others
        )
    if refusal is not None:
        socket.refuse(refusal, request.id)
        return
    peer.push(frames.text_frame(frames.subscribed(request.id)))
    if request.from_ is not None:
        socket.wake()


def _unsubscribe(socket: Socket, frame: Frame) -> None:
    id_ = frames.parse_request_id(frame)
    socket.service.relay.unsubscribe(socket.peer, id_)
    socket.peer.push(frames.text_frame(frames.unsubscribed(id_)))


def _roster(socket: Socket, frame: Frame) -> Steps:
    id_, peer = frames.parse_request_id(frame), socket.peer
    claims = socket.service.relay.claims
    if peer.role == "emitter":
        socket.refuse(Refusal("unauthorized", "an emitter connection may not ask for the roster"), id_)
    elif peer.grants is not None and not peer.grants.consume:
        socket.refuse(Refusal("unauthorized", "this token may not consume"), id_)
    elif claims.size_bytes > socket.service.limits.hard_limit_bytes:
        socket.refuse(Refusal("limit-exceeded", "the roster is longer than hard_limit_bytes"), id_)
    else:
        return _tell_roster(socket, id_)
    return None


def _tell_roster(socket: Socket, id_: str) -> Iterator[None]:
    entries = yield from socket.service.relay.claims.write_roster(socket.peer.grants)
    socket.peer.push(frames.text_frame(frames.roster(id_, entries)))


def _ping(socket: Socket, frame: Frame) -> None:
    socket.peer.push(frames.text_frame(frames.pong(frame.get("t"))))


def _announce(socket: Socket, frame: Frame) -> None:
    if socket.chained is not None:
        socket.chained.changed(frame)


_HANDLERS: dict[str, Callable[[Socket, Frame], Steps]] = {
    "subscribe": _subscribe,
    "unsubscribe": _unsubscribe,
    "roster": _roster,
    "ping": _ping,
    feeders.NAME: _announce,
}
