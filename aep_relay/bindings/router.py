"""From path to binding: the requests of one accepted connection (AEP-0003 §3).

Every error body is JSON with ``error`` and ``detail``, and carries the cross-origin headers that let a page read it.
"""

from __future__ import annotations

from email.utils import formatdate
from typing import TYPE_CHECKING

import msgspec

from aep_relay.bindings import cors, emit, introspect, stream, websocket
from aep_relay.bindings.auth import TooManyRequests
from aep_relay.protocol.errors import ProtocolError, Unauthorized, http_body, http_status
from aep_relay.transport.http import HttpReader, HttpRefusal
from aep_relay.transport.response import response
from aep_relay.transport.wire import BrokenWire

if TYPE_CHECKING:
    from aep_relay.bindings.service import Service
    from aep_relay.transport.http import Request
    from aep_relay.transport.wire import Wire

    Headers = list[tuple[str, str]]

METHODS = {
    "/events": "GET, HEAD, OPTIONS, POST",
    "/stream": "GET, HEAD, OPTIONS",
    "/socket": "GET, OPTIONS",
    "/.well-known/aep": "GET, HEAD, OPTIONS",
    "/healthz": "GET, HEAD, OPTIONS",
    "/connections": "GET, HEAD, OPTIONS",
}

UPGRADES = {
    "/events": [("Upgrade", "AEP/0.1")],
    "/socket": [("Upgrade", "websocket"), ("Sec-WebSocket-Version", "13")],
}
"""What a 426 says has to be spoken instead (RFC 9110 §15.5.22, RFC 6455 §4.4)."""

_ACCEPTED = {
    keep_alive: response(202, b'{"accepted":1}', keep_alive=keep_alive) for keep_alive in (True, False)
}


class Status(ProtocolError):
    """A refusal that is HTTP's alone."""

    def __init__(self, http_status: int, code: str, detail: str) -> None:
        super().__init__(detail)
        self.http_status = http_status
        self.code = code


async def serve(service: Service, wire: Wire) -> None:
    """Serve one connection, which ``Service.admit`` has counted in, to its end."""
    reader, peer_name = HttpReader(wire, service.limits, service.deadlines), wire.peer_name
    service.readers.add(reader)
    service.unused.add(reader)
    try:
        while (request := await reader.next_request()) is not None:
            service.unused.discard(reader)
            if service.forwarded:
                wire.peer_name = service.forwarded.name(peer_name, request)
            if not await _serve_one(service, wire, reader, request):
                return
        await reader.close()
    except HttpRefusal as refusal:
        await _refuse_unparsed(service, reader, refusal)
    except BrokenWire:
        pass
    except Exception:
        # The barrier: whatever went wrong here, other connections must not notice.
        service.log.exception("connection failed", remote=wire.peer_name)
    finally:
        service.open_connections -= 1
        service.readers.discard(reader)
        service.unused.discard(reader)
        wire.close()


async def _refuse_unparsed(service: Service, reader: HttpReader, refusal: HttpRefusal) -> None:
    headers = cors.headers_for(service, refusal.origin)
    try:
        await reader.answer(response(refusal.http_status, http_body(refusal), headers, keep_alive=False))
        await reader.close()
    except BrokenWire:
        # Then nobody is left who could be told.
        pass


async def _serve_one(service: Service, wire: Wire, reader: HttpReader, request: Request) -> bool:
    """Serve one request; False when the connection has been given away or is over."""
    try:
        cors.refuse_foreign(service, request, wire)
        if service.draining:
            raise Status(503, "draining", "this relay is shutting down")
        if request.path == "/events" and request.method == "POST":
            return await _post(service, reader, request)
        answer = await _answer(service, request)
        if answer is None:
            return await _give_away(service, wire, reader, request)
        status, body, headers = answer
    except HttpRefusal as refusal:
        # In mid-body: the answer needs the page's headers, and then the connection ends.
        status, headers = refusal.http_status, cors.headers(service, request)
        body = http_body(refusal)
    except ProtocolError as error:
        status, body, headers = _error(service, request, error)
    keep_alive = reader.keep_alive and not service.draining
    head_only = request.method == "HEAD"
    await reader.answer(response(status, body, headers, keep_alive=keep_alive, head_only=head_only))
    if not keep_alive:
        await reader.close()
    return keep_alive


def _error(service: Service, request: Request, error: ProtocolError) -> tuple[int, bytes, Headers]:
    headers = cors.headers(service, request)
    if error.http_status == 401:
        headers.append(("WWW-Authenticate", "Bearer"))
    elif error.http_status == 405:
        headers.append(("Allow", METHODS[request.path]))
    elif error.http_status == 415:
        headers.append(("Accept-Encoding", "identity"))
    elif error.http_status == 426:
        headers += UPGRADES[request.path]
    elif isinstance(error, TooManyRequests) and error.retry_after_seconds is not None:
        headers += [
            ("Retry-After", str(error.retry_after_seconds)),
            ("Access-Control-Expose-Headers", "Retry-After"),
        ]
    service.relay.stats.refused(error.code)
    return http_status(error), http_body(error), headers


async def _post(service: Service, reader: HttpReader, request: Request) -> bool:
    holder = service.authority.holder(request)
    if not holder.grants.emit:
        raise Status(403, "unauthorized", "this token may not emit")
    count = await emit.take_in(service, request, reader, holder)
    keep_alive = reader.keep_alive and not service.draining
    headers = cors.headers(service, request)
    if count == 1 and not headers:
        await reader.answer(_ACCEPTED[keep_alive])
    else:
        await reader.answer(response(202, b'{"accepted":%d}' % count, headers, keep_alive=keep_alive))
    if not keep_alive:
        await reader.close()
    return keep_alive


async def _answer(service: Service, request: Request) -> tuple[int, bytes, Headers] | None:
    """Return status, body and headers, or None for what becomes a stream or a socket."""
    path, method = request.path, request.method
    if path not in METHODS:
        if path == "*" and method == "OPTIONS":
            return 204, b"", [("Allow", "GET, HEAD, OPTIONS, POST")]
        raise Status(404, "not-found", "there is nothing at this path")
    if method == "OPTIONS":
        return 204, b"", cors.preflight(service, request, METHODS[path])
    if method not in METHODS[path].split(", "):
        raise Status(405, "method-not-allowed", f"{path} takes {METHODS[path]}")
    headers = cors.headers(service, request)
    if path in ("/events", "/.well-known/aep"):
        return 200, service.discovery, headers
    if path == "/healthz":
        # By which a client can tell how far its clock is off (RFC 9110 §6.6.1).
        headers.append(("Date", formatdate(usegmt=True)))
        document = introspect.health(service, authenticated=_is_authenticated(service, request))
        return (200 if document["ok"] else 503), msgspec.json.encode(document), headers
    if path == "/connections":
        if not service.authority.grants(request).operate and not service.authority.open:
            raise Status(403, "unauthorized", "this token may not operate the relay")
        return 200, await introspect.connections(service), headers
    return None


def _is_authenticated(service: Service, request: Request) -> bool:
    try:
        service.authority.grants(request)
    except Unauthorized:
        return False
    return True


async def _give_away(service: Service, wire: Wire, reader: HttpReader, request: Request) -> bool:
    """Turn the connection into a stream or a socket, which ends it. Raises ``ProtocolError`` before it has begun."""
    holder = service.authority.holder(request)
    grants = holder.grants
    if request.path == "/stream":
        if not grants.consume:
            raise Status(403, "unauthorized", "this token may not consume")
        headers = cors.headers(service, request)
        if request.method == "HEAD":
            stream.parse(request, service.limits)
            await reader.answer(stream.head(request, headers))
            await reader.close()
        else:
            holder.check_room()
            with service.forwarded.room(wire.peer_name, service.limits.max_address_connections):
                await stream.serve(service, wire, request, holder, headers)
        return False
    if not request.upgrade_websocket:
        raise Status(426, "upgrade-required", "/socket speaks WebSocket: send Upgrade: websocket")
    if not (grants.emit or grants.consume or grants.control):
        raise Status(403, "unauthorized", "this token may neither emit nor consume nor command")
    holder.check_room()
    with service.forwarded.room(wire.peer_name, service.limits.max_address_connections):
        rest = reader.take_rest()
        try:
            await websocket.serve(service, wire, request, rest, holder)
        except ProtocolError:
            # What follows a handshake that failed is the next request.
            reader.put_back(rest)
            raise
    return False
