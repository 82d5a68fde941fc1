"""Who asks behind a proxy: believed of configured proxies only, in logs, listings and limits."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import trio

from aep_relay.bindings import router
from aep_relay.bindings.forwarded import Forwarded
from aep_relay.config import Config, Listen
from aep_relay.hub.limits import Limits
from aep_relay.transport.request import parse_head
from tests.bindings.served import Served, hello, request, settle
from tests.fakes.log import Log
from tests.fakes.wire import MemoryWire

PROXIES = ("127.0.0.1/32", "::1/128", "10.0.0.0/8")


def name(peer: str, headers: Mapping[str, str], trusted: tuple[str, ...] = PROXIES) -> str:
    return Forwarded(trusted).name(peer, parse_head(request("GET", "/", None, headers)))


XFF = "X-Forwarded-For"


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, "127.0.0.1:5000"),
        ({XFF: "203.0.113.7"}, "203.0.113.7"),
        ({XFF: "203.0.113.7:4711"}, "203.0.113.7:4711"),
        ({XFF: "2001:db8::7"}, "2001:db8::7"),
        ({XFF: "[2001:db8::7]:4711"}, "[2001:db8::7]:4711"),
        ({XFF: "::ffff:203.0.113.7"}, "203.0.113.7"),
        # What a client wrote itself stands before what the first proxy wrote of it.
        ({XFF: "198.51.100.1, 203.0.113.7"}, "203.0.113.7"),
        ({XFF: "198.51.100.1, 203.0.113.7, 10.1.2.3"}, "203.0.113.7"),
        ({XFF: "nonsense, 10.1.2.3"}, "10.1.2.3"),
        ({XFF: "nonsense"}, "127.0.0.1:5000"),
        ({XFF: ""}, "127.0.0.1:5000"),
        ({XFF: "203.0.113.7, unknown"}, "127.0.0.1:5000"),
        ({XFF: "10.0.0.1, 10.0.0.2"}, "10.0.0.1"),
        ({"Forwarded": "for=203.0.113.7;proto=https"}, "203.0.113.7"),
        ({"Forwarded": 'proto=https; For="[2001:db8::7]:4711"'}, "[2001:db8::7]:4711"),
        ({"Forwarded": "for=198.51.100.1, for=203.0.113.7, for=10.0.0.1"}, "203.0.113.7"),
        ({"Forwarded": "for=198.51.100.1, for=_hidden"}, "127.0.0.1:5000"),
        ({"Forwarded": "by=203.0.113.7"}, "127.0.0.1:5000"),
        ({"Forwarded": 'for="203.0.113.7'}, "127.0.0.1:5000"),
        ({"Forwarded": "for=203.0.113.7", XFF: "203.0.113.7"}, "203.0.113.7"),
        # A proxy that writes one of them may pass on the other as the client made it up.
        ({"Forwarded": "for=198.51.100.1", XFF: "203.0.113.7"}, "127.0.0.1:5000"),
    ],
)
def test_what_a_proxy_says(headers: dict[str, str], expected: str) -> None:
    assert name("127.0.0.1:5000", headers) == expected


@pytest.mark.parametrize("peer", ["192.0.2.1:5000", "[2001:db8::1]:5000", "unknown", "unix:pid=1,uid=0"])
def test_what_anybody_else_says_does_not_count(peer: str) -> None:
    assert name(peer, {XFF: "203.0.113.7", "Forwarded": "for=203.0.113.7"}) == peer


@pytest.mark.parametrize("peer", ["10.200.0.1:5000", "[::1]:5000", "[::ffff:10.0.0.1]:5000"])
def test_proxies_are_networks(peer: str) -> None:
    assert name(peer, {XFF: "203.0.113.7"}) == "203.0.113.7"


def test_a_proxy_that_comes_by_unix_socket() -> None:
    headers, peer = {XFF: "203.0.113.7"}, "unix:pid=1,uid=0"
    assert name(peer, headers, ("unix",)) == "203.0.113.7"
    assert name("127.0.0.1:5000", headers, ("unix",)) == "127.0.0.1:5000"


def served(nursery: trio.Nursery, limits: Limits | None = None) -> Served:
    return Served(nursery, Config(listen=Listen(trusted_proxies=PROXIES), limits=limits or Limits()))


class Proxied(MemoryWire):
    """A wire from a proxy."""

    def __init__(self, peer_name: str = "127.0.0.1:5000") -> None:
        super().__init__()
        self.peer_name = peer_name


async def open_stream(relay: Served, wire: MemoryWire, client: str) -> bytes:
    assert relay.service.admit()
    relay.nursery.start_soon(router.serve, relay.service, wire)
    wire.feed(request("GET", "/stream", None, {XFF: client}))
    await settle()
    return wire.take_sent()


async def test_logs_and_listings_name_the_client(log: Log) -> None:
    async with trio.open_nursery() as nursery:
        relay = served(nursery)
        await open_stream(relay, Proxied(), "203.0.113.7")
        await open_stream(relay, Proxied("192.0.2.1:5000"), "203.0.113.7")
        listed = (await relay.ask("GET", "/connections")).json["connections"]
        assert [found["remote"] for found in listed] == ["203.0.113.7", "192.0.2.1:5000"]
        assert [record["remote"] for record in log.records("connection opened")] == [
            "203.0.113.7",
            "192.0.2.1:5000",
        ]
        nursery.cancel_scope.cancel()


async def test_a_kept_connection_of_a_proxy_serves_many() -> None:
    async with trio.open_nursery() as nursery:
        relay, wire = served(nursery), Proxied()
        assert relay.service.admit()
        nursery.start_soon(router.serve, relay.service, wire)
        for client in ("203.0.113.7", "203.0.113.8"):
            wire.feed(request("GET", "/healthz", None, {XFF: client}))
            await settle()
            assert wire.peer_name == client
        wire.feed(request("GET", "/healthz"))
        await settle()
        assert wire.peer_name == "127.0.0.1:5000"
        nursery.cancel_scope.cancel()


async def test_an_address_holds_so_many_connections() -> None:
    async with trio.open_nursery() as nursery:
        relay = served(nursery, Limits(max_address_connections=2))
        wires = [Proxied(f"127.0.0.1:{5000 + n}") for n in range(3)]
        first, second, third = [
            await open_stream(relay, wire, f"203.0.113.7:{n}") for n, wire in enumerate(wires)
        ]
        assert first.startswith(b"HTTP/1.1 200 ")
        assert second.startswith(b"HTTP/1.1 200 ")
        assert third.startswith(b"HTTP/1.1 429 ")
        assert b"max_address_connections" in third
        assert (await open_stream(relay, Proxied(), "203.0.113.8")).startswith(b"HTTP/1.1 200 ")
        wires[0].feed_end()
        await settle()
        assert (await open_stream(relay, Proxied(), "203.0.113.7")).startswith(b"HTTP/1.1 200 ")
        nursery.cancel_scope.cancel()


async def test_sockets_count_as_well() -> None:
    async with trio.open_nursery() as nursery:
        relay = served(nursery, Limits(max_address_connections=1))
        await open_stream(relay, Proxied("192.0.2.1:5000"), "")
        assert (await open_stream(relay, Proxied("192.0.2.1:5001"), "")).startswith(b"HTTP/1.1 429 ")
        # Who comes by a unix socket, or in memory, has no address.
        sockets = [await relay.socket() for _ in range(3)]
        assert [(await socket.ask(hello()))[0]["type"] for socket in sockets] == ["hello"] * 3
        nursery.cancel_scope.cancel()
