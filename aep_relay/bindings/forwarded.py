"""Who asks, where a proxy stands in between (RFC 7239 and its customary precursor), and how many connections it has.

Invariants: what a header says counts only if the connection comes from a configured proxy, and of a chain of addresses
only what configured proxies wrote; where the two headers disagree, neither is believed, since a proxy that writes one
may pass on the other. What comes of it is a printable address.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import TYPE_CHECKING

from aep_relay.bindings.auth import TooManyRequests

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from aep_relay.transport.request import Request

    Address = IPv4Address | IPv6Address

_FOR = re.compile(r'(?:^|;)\s*for\s*=\s*(?:"([^"]*)"|([^;,\s"]*))\s*(?=;|$)', re.IGNORECASE)
_HOST_AND_PORT = re.compile(r"\[([0-9A-Fa-f:.]+)\](?::(\d{1,5}))?|([0-9.]+)(?::(\d{1,5}))?|([0-9A-Fa-f:.]+)")


class Forwarded:
    """The configured proxies, and the connections that each address holds."""

    def __init__(self, trusted: Iterable[str]) -> None:
        trusted = list(trusted)
        self._unix = "unix" in trusted
        self._networks = [ip_network(text) for text in trusted if text != "unix"]
        self._held: dict[str, int] = {}

    def __bool__(self) -> bool:
        return self._unix or bool(self._networks)

    def name(self, peer_name: str, request: Request) -> str:
        """Return the name of who asks: ``peer_name``, the wire's, unless that is a proxy that says more."""
        if not self._is_proxy(peer_name):
            return peer_name
        chains = [chain for chain in (self._forwarded(request), self._x_forwarded_for(request)) if chain]
        found = {self._client(chain) for chain in chains}
        if len(found) != 1:
            return peer_name
        return found.pop() or peer_name

    def _is_proxy(self, peer_name: str) -> bool:
        if peer_name.startswith("unix"):
            return self._unix
        parsed = _parse(peer_name)
        return parsed is not None and self._trusts(parsed[0])

    def _trusts(self, address: Address) -> bool:
        return any(address in network for network in self._networks)

    def _client(self, chain: list[str]) -> str | None:
        """Return the last address of ``chain`` that no configured proxy has; None where it breaks off."""
        found = None
        for text in reversed(chain):
            parsed = _parse(text)
            if parsed is None:
                return found
            address, port = parsed
            found = _text(address, port)
            if not self._trusts(address):
                return found
        return found

    @staticmethod
    def _forwarded(request: Request) -> list[str]:
        elements = b",".join(request.get_all(b"forwarded")).decode("latin-1")
        found: list[str] = []
        for element in elements.split(",") if elements else ():
            match = _FOR.search(element)
            found.append("" if match is None else match[1] or match[2] or "")
        return found

    @staticmethod
    def _x_forwarded_for(request: Request) -> list[str]:
        values = b",".join(request.get_all(b"x-forwarded-for")).decode("latin-1")
        return [text.strip() for text in values.split(",")] if values else []

    @contextmanager
    def room(self, name: str, at_most: int) -> Iterator[None]:
        """Hold a connection of the address in ``name`` for the block. Raises ``TooManyRequests``.

        ``at_most`` 0 is for any number; those who come by a unix socket are not told apart.
        """
        parsed = _parse(name)
        if parsed is None:
            yield
            return
        address = str(parsed[0])
        if at_most and self._held.get(address, 0) >= at_most:
            raise TooManyRequests(
                f"max_address_connections: one address may hold {at_most} streams and sockets"
            )
        self._held[address] = self._held.get(address, 0) + 1
        try:
            yield
        finally:
            self._held[address] -= 1
            if not self._held[address]:
                del self._held[address]


def _parse(text: str) -> tuple[Address, str | None] | None:
    """Return the address and the port in ``text``; None where there is no address."""
    match = _HOST_AND_PORT.fullmatch(text)
    if match is None:
        return None
    try:
        address = ip_address(match[1] or match[3] or match[5] or "")
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address, match[2] or match[4]


def _text(address: Address, port: str | None) -> str:
    if port is None:
        return str(address)
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"
