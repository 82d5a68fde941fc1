"""From an HTTP request to an open WebSocket: the server's side of the opening handshake (RFC 6455 §4.2).

``websockets``' sans-I/O core does it; the relay's own HTTP reader has seen the request before.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from websockets.http11 import Request as HandshakeRequest
from websockets.server import ServerProtocol

from aep_relay.protocol.errors import ProtocolError

if TYPE_CHECKING:
    from aep_relay.transport.http import Request

_QUIET = logging.getLogger("aep_relay.websocket")
_QUIET.setLevel(logging.CRITICAL)


class BadHandshake(ProtocolError):
    """An upgrade request that RFC 6455 §4.2.1 does not allow."""

    code = "bad-handshake"


class UnsupportedWebSocketVersion(ProtocolError):
    """Not WebSocket version 13 (RFC 6455 §4.2.2)."""

    code = "websocket-version-unsupported"
    http_status = 426


def handshake(request: Request, max_message_bytes: int) -> tuple[ServerProtocol, bytes]:
    """Return the protocol of an accepted connection and the bytes that accept it.

    Raises ``BadHandshake`` and ``UnsupportedWebSocketVersion``.
    """
    if request.get(b"sec-websocket-version") not in (None, b"13"):
        raise UnsupportedWebSocketVersion("the only WebSocket version spoken here is 13")
    protocol = ServerProtocol(max_size=max_message_bytes, logger=_QUIET)
    protocol.receive_data(request.raw_head)
    events = protocol.events_received()
    if not events or not isinstance(events[0], HandshakeRequest):
        raise BadHandshake("the upgrade request is malformed or one of its lines is too long")
    response = protocol.accept(events[0])
    if response.status_code != 101:
        raise BadHandshake("the upgrade request lacks a valid Sec-WebSocket-Key or Sec-WebSocket-Version")
    protocol.send_response(response)
    return protocol, b"".join(protocol.data_to_send())
