from __future__ import annotations

import pytest

from aep_relay.config import Config, Listen, Operator
from aep_relay.ops import dataport
from tests.ops.observed import Observation


@pytest.mark.parametrize(
    ("bound", "host", "expected"),
    [
        ("127.0.0.1", "localhost:8788", "localhost:8787"),
        ("::1", "[::1]:8788", "[::1]:8787"),
        ("0.0.0.0", "relay.internal:8788", "relay.internal:8787"),
        ("::", "[2001:db8::1]:8788", "[2001:db8::1]:8787"),
        ("10.0.0.5", "localhost:8788", "10.0.0.5:8787"),
        ("2001:db8::1", "localhost:8788", "[2001:db8::1]:8787"),
        ("127.0.0.1", "ops.example.org", "127.0.0.1:8787"),
    ],
)
def test_the_data_port_is_where_the_page_can_reach_it(bound: str, host: str, expected: str) -> None:
    service = Observation(addresses=[(bound, 8787)])
    assert dataport.base_urls(service, host) == [f"http://{expected}", f"https://{expected}"]


def test_behind_a_proxy_it_is_where_the_operator_says() -> None:
    service = Observation(Config(operator=Operator(relay_url="https://relay.example.org/aep/")))
    assert dataport.base_urls(service, "ops.example.org") == ["https://relay.example.org/aep"]


@pytest.mark.parametrize("host", ["a b", "x;y", "", "x'", 'x"', "x, *"])
def test_a_malformed_host_names_no_data_port(host: str) -> None:
    assert dataport.base_urls(Observation(), host) == []


def test_a_unix_socket_is_not_for_browsers() -> None:
    service = Observation(Config(listen=Listen(host=None)), addresses=["/run/relay.sock"])
    assert dataport.base_urls(service, "localhost") == []


def test_before_it_listens_it_is_where_it_will() -> None:
    assert dataport.base_urls(Observation(addresses=[]), "localhost:8788")[0] == "http://localhost:8787"
    later = Observation(Config(listen=Listen(port=0)), addresses=[])
    assert dataport.base_urls(later, "localhost:8788") == []


def test_policy_sources_are_origins_for_fetches_and_sockets() -> None:
    assert dataport.sources(["https://relay.example.org/aep"]) == [
        "https://relay.example.org",
        "wss://relay.example.org",
    ]
    assert dataport.sources(["http://[::1]:1"]) == ["http://[::1]:1", "ws://[::1]:1"]
