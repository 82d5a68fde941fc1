"""The Quart-Trio application of the operator plane: which page is what."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec
from quart import Response
from quart_trio import QuartTrio

from aep_relay.ops import health

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hypercorn.typing import ASGIFramework

    from aep_relay.ops.observer import Observer

JSON = "application/json"


def build(observer: Observer) -> ASGIFramework:
    """Return the application that tells about what ``observer`` observes."""
    app = QuartTrio(__name__, static_folder=None)
    app.config["RESPONSE_TIMEOUT"] = None

    @app.get("/health/live")
    async def live() -> Response:
        return Response(b'{"live":true}', content_type=JSON)

    @app.get("/health/ready")
    async def ready() -> Response:
        document = health.readiness(observer)
        return Response(msgspec.json.encode(document), 200 if document["ready"] else 503, content_type=JSON)

    return app  # type: ignore[return-value]


def own_origins(host: str | None, bound: Iterable[object]) -> set[str]:
    return set()


def address_text(address: object) -> str:
    """Return a bound address as text."""
    if isinstance(address, tuple):
        host, port = address[0], address[1]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return f"unix:{os.fsdecode(address)}" if isinstance(address, str | bytes) else str(address)
