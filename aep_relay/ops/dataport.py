"""How the dashboard's browser reaches the data port."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from aep_relay.config.hosts import host_name, is_loopback

if TYPE_CHECKING:
    from aep_relay.ops.observed import Observed

_WILDCARDS = ("", "0.0.0.0", "::")  # noqa: S104


def base_urls(service: Observed, host: str) -> list[str]:
    """Return the data port's base URLs for a page that was asked for under the Host ``host``: best first.

    Without a proxy that is one for a page served in clear text and one for a page served over TLS. None when the data
    port has no TCP address or the Host is malformed.
    """
    configured = service.config.operator.relay_url
    if configured is not None:
        return [configured.rstrip("/")]
    name = host_name(host)
    address = next((address for address in service.addresses if isinstance(address, tuple)), None)
    if address is None and service.config.listen.host is not None and service.config.listen.port:
        # It is about to listen there.
        address = (service.config.listen.host, service.config.listen.port)
    if name is None or address is None:
        return []
    bound = str(address[0])
    if bound not in _WILDCARDS and not (is_loopback(bound) and is_loopback(name)):
        name = f"[{bound}]" if ":" in bound else bound
    return [f"{scheme}://{name}:{address[1]}" for scheme in ("http", "https")]


def sources(urls: list[str]) -> list[str]:
    """Return what a Content-Security-Policy has to list for a page to connect to ``urls``."""
    found: list[str] = []
    for url in urls:
        parts = urlsplit(url)
        found += [f"{parts.scheme}://{parts.netloc}", f"{'ws' + parts.scheme[4:]}://{parts.netloc}"]
    return found
