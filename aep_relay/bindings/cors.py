"""What pages in browsers may do: cross-origin headers, on refusals as well, since a browser reads nothing without them
(WHATWG Fetch), and what is refused to pages from elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aep_relay.protocol.errors import Forbidden

if TYPE_CHECKING:
    from aep_relay.bindings.service import Service
    from aep_relay.transport.http import Request
    from aep_relay.transport.wire import Wire

    Headers = list[tuple[str, str]]

ALLOWED_HEADERS = "AEP-Version, Authorization, Content-Type, Last-Event-ID, Cache-Control"
PREFLIGHT_SECONDS = 600


def allowed(service: Service, origin: str) -> bool:
    """Whether a page of ``origin`` may use this relay; the relay's own dashboard always may."""
    return origin in service.own_origins or service.config.allows_origin(origin)


def headers(service: Service, request: Request) -> Headers:
    """Return the headers that let the page that asked read the answer."""
    return headers_for(service, request.get(b"origin"))


def headers_for(service: Service, origin: bytes | None) -> Headers:
    """Return the headers that let a page of ``origin`` read an answer; none where no page asked."""
    if origin is None:
        return []
    text = origin.decode("latin-1")
    if not text.isprintable() or not allowed(service, text):
        return [("Vary", "Origin")]
    return [("Access-Control-Allow-Origin", text), ("Vary", "Origin")]


def preflight(service: Service, request: Request, methods: str) -> Headers:
    """Return the headers that answer an ``OPTIONS`` request for a path that takes ``methods``."""
    found = [("Allow", methods), *headers(service, request)]
    if len(found) > 2:
        found += [
            ("Access-Control-Allow-Methods", methods),
            ("Access-Control-Allow-Headers", ALLOWED_HEADERS),
            ("Access-Control-Max-Age", str(PREFLIGHT_SECONDS)),
        ]
        if request.get(b"access-control-request-private-network") is not None:
            found.append(("Access-Control-Allow-Private-Network", "true"))
    return found


def refuse_foreign(service: Service, request: Request, wire: Wire) -> None:
    """Refuse what a page from elsewhere makes its visitor's browser send to a relay without a token.

    With a token the page would have to know it; without one, the browser's reach would be the page's. Its origin
    tells, unless its own name was made to lead here (DNS rebinding): then the Host does. Over a unix socket no
    browser comes. Clients that are no browsers send no Origin. Raises ``Forbidden``.
    """
    if not service.authority.open:
        return
    host = request.host
    if host and not service.config.allows_host(host) and not wire.peer_name.startswith("unix"):
        raise Forbidden("this Host is not a name of this relay; see cors.allowed_hosts")
    origin = request.get(b"origin")
    if origin is not None and request.method != "OPTIONS" and not allowed(service, origin.decode("latin-1")):
        raise Forbidden("pages of this origin may not use this relay; see cors.allowed_origins")
