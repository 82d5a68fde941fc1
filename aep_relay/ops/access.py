"""Who may ask the operator plane, and which pages are its own.

With a token, everything but health and the static page needs it, and its ``operate`` grant. Without one the plane is
bound to loopback, and a page of another site must not reach it through its visitor's browser: no answer carries
cross-origin headers, and a Host that is not this machine's (DNS rebinding) is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aep_relay.config.hosts import host_name
from aep_relay.protocol.errors import Forbidden
from aep_relay.transport.request import Request

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aep_relay.ops.observed import Observed

MAX_OWN_ORIGINS = 32

_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")


def check(
    service: Observed, authorization: list[str], query: dict[str, list[str]], host: str, *, unix: bool
) -> None:
    """Let a request through or raise ``Unauthorized`` or ``Forbidden``.

    ``host`` is its Host field. ``unix`` says that it came over the unix socket, which no browser can be made to use.
    """
    if service.authority.open:
        if not unix and not _is_ours(service, host):
            raise Forbidden("this Host is not one of the operator plane's")
        return
    request = Request(b"", "GET", b"/", "1.1")
    request.headers = [(b"authorization", value.encode("latin-1")) for value in authorization]
    request.query = query
    if not service.authority.grants(request).operate:
        raise Forbidden("this token may not operate the relay")
    _learn_origin(service, host)


def _is_ours(service: Observed, host: str) -> bool:
    return service.config.allows_host(host) or host_name(host) == (service.config.operator.host or "").lower()


def _learn_origin(service: Observed, host: str) -> None:
    """Who holds the token reaches this plane under ``host``: then that is the dashboard's origin as well.

    It opens nothing: with a token, a page of any origin still needs it.
    """
    if host_name(host) is None or len(service.own_origins) >= MAX_OWN_ORIGINS:
        return
    service.own_origins.add(f"http://{host.lower()}")
    if service.config.auth.behind_tls_proxy:
        service.own_origins.add(f"https://{host.lower()}")


def own_origins(host: str | None, bound: Iterable[object]) -> set[str]:
    """Return the origins a dashboard has that is served for ``host`` on the addresses ``bound``."""
    ports = {address[1] for address in bound if isinstance(address, tuple)}
    names = set(_LOOPBACK_NAMES)
    if host:
        names.add(f"[{host.lower()}]" if ":" in host else host.lower())
    return {f"http://{name}:{port}" for name in names for port in ports}
