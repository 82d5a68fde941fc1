"""The Quart-Trio application of the operator plane: which page is what, and who may see it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import trio
from quart import Response, request
from quart_trio import QuartTrio
from werkzeug.exceptions import HTTPException

from aep_relay.ops import access, assets, dataport, health, overview, settings, views
from aep_relay.ops.metrics import Exposition
from aep_relay.protocol.errors import ProtocolError, http_body

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from hypercorn.typing import ASGIReceiveCallable, ASGISendCallable, Scope

    from aep_relay.ops.observer import Observer

JSON = "application/json"
MAX_BODY_BYTES = 4096
"""Nothing here takes a body."""

_OPEN = frozenset({"live", "ready", "page", "static_file"})
"""Endpoints that need no token."""


class Application:
    """The ASGI application: HTTP only."""

    def __init__(self, app: QuartTrio) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        """Serve one request; refuse what wants to be a WebSocket, which is the data port's."""
        if scope["type"] == "http":
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            try:
                await send({"type": "websocket.close", "code": 1000, "reason": None})
            except Exception:
                # Bytes came behind the upgrade request, and Hypercorn has refused it already.
                return


def build(observer: Observer, *, unix: bool = False) -> Application:
    """Return the application that tells about what ``observer`` observes; ``unix`` if over a unix socket."""
    app = QuartTrio(__name__, static_folder=None)
    app.config["RESPONSE_TIMEOUT"] = None
    app.config["BODY_TIMEOUT"] = 10
    app.config["MAX_CONTENT_LENGTH"] = MAX_BODY_BYTES
    _guard(app, observer, unix)
    _health(app, observer)
    _dashboard(app, observer)
    _introspection(app, observer)
    return Application(app)


def _guard(app: QuartTrio, observer: Observer, unix: bool) -> None:
    @app.before_request
    async def may_ask() -> None:
        if request.endpoint not in _OPEN:
            query = dict(request.args.lists())
            authorization = request.headers.getlist("Authorization")
            access.check(observer.service, authorization, query, request.headers.get("Host", ""), unix=unix)

    @app.after_request
    async def keep_to_itself(response: Any) -> Any:
        for name, value in assets.HEADERS.items():
            response.headers[name] = value
        response.headers.setdefault("Cache-Control", "no-store")
        return response

    @app.errorhandler(ProtocolError)
    async def refused(error: ProtocolError) -> Response:
        response = Response(http_body(error), error.http_status, content_type=JSON)
        if error.http_status == 401:
            response.headers["WWW-Authenticate"] = "Bearer"
        return response

    @app.errorhandler(HTTPException)
    async def failed(error: HTTPException) -> Response:
        code = (error.name or "error").lower().replace(" ", "-")
        body = msgspec.json.encode({"error": code, "detail": error.description or ""})
        response = Response(body, error.code or 500, content_type=JSON)
        allowed = getattr(error, "valid_methods", None)
        if allowed:
            response.headers["Allow"] = ", ".join(sorted(allowed))
        return response


def _health(app: QuartTrio, observer: Observer) -> None:
    @app.get("/health/live")
    async def live() -> Response:
        return _json({"live": True})

    @app.get("/health/ready")
    async def ready() -> Response:
        document = health.readiness(observer)
        return _json(document, 200 if document["ready"] else 503)

    @app.get("/metrics")
    async def metrics() -> Response:
        text, content_type = await exposition.render(request.headers.get("Accept", ""))
        return Response(text, content_type=content_type)

    exposition = Exposition(observer)


def _dashboard(app: QuartTrio, observer: Observer) -> None:
    files = assets.load()

    @app.get("/")
    async def page() -> Response:
        response = _file(files["index.html"])
        urls = dataport.base_urls(observer.service, request.headers.get("Host", ""))
        response.headers["Content-Security-Policy"] = assets.policy(dataport.sources(urls))
        return response

    @app.get("/static/<name>")
    async def static_file(name: str) -> Response:
        file = files.get(name)
        return _json({"error": "not-found", "detail": "no such file"}, 404) if file is None else _file(file)

    @app.get("/overview")
    async def show_overview() -> Response:
        return _json(await overview.document(observer, request.headers.get("Host", "")))


def _introspection(app: QuartTrio, observer: Observer) -> None:
    service = observer.service

    @app.get("/connections")
    async def connections() -> Response:
        now = trio.current_time()
        return _stream(views.listing("connections", lambda: views.connections(service.relay, now)))

    @app.get("/sessions")
    async def sessions() -> Response:
        return _stream(views.listing("sessions", lambda: views.sessions(service.relay)))

    @app.get("/roster")
    async def roster() -> Response:
        return _stream(views.listing("entries", service.relay.claims.entries))

    @app.get("/config")
    async def configuration() -> Response:
        config = service.config
        # In a worker: there may be thousands of tokens.
        text = await trio.to_thread.run_sync(lambda: msgspec.json.encode(settings.document(config)))
        return Response(text, content_type=JSON)


def _json(document: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(document), status, content_type=JSON)


def _stream(pieces: AsyncIterator[bytes]) -> Response:
    response = Response(pieces, content_type=JSON)
    # It ends by itself; what a reader has to take in time is one piece.
    response.timeout = None
    return response


def _file(asset: assets.Asset) -> Response:
    unchanged = request.if_none_match.contains(asset.etag)
    response = Response(
        b"" if unchanged else asset.body, 304 if unchanged else 200, content_type=asset.content_type
    )
    response.set_etag(asset.etag)
    response.headers["Cache-Control"] = "no-cache"
    return response
