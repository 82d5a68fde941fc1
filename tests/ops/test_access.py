from __future__ import annotations

import pytest

from aep_relay.config import Auth, Config, Operator
from aep_relay.ops import access
from aep_relay.protocol.errors import Forbidden, Unauthorized
from tests.ops.observed import TOKEN, WATCHER, Door, Observation


def ask(
    service: Observation, host: str = "127.0.0.1:8788", token: str | None = None, *, unix: bool = False
) -> None:
    access.check(service, [] if token is None else [f"Bearer {token}"], {}, host, unix=unix)


@pytest.mark.parametrize("host", ["127.0.0.1:8788", "localhost:8788", "LOCALHOST", "[::1]:8788", "127.9.9.9"])
def test_without_a_token_this_machine_may_ask(host: str) -> None:
    ask(Observation(), host)


@pytest.mark.parametrize(
    "host",
    ["evil.example:8788", "evil.example", "localhost.evil.example", "10.0.0.1", "", "a b", "localhost:1:2"],
)
def test_without_a_token_no_other_name_leads_here(host: str) -> None:
    with pytest.raises(Forbidden):
        ask(Observation(), host)


def test_the_name_it_was_told_to_serve_leads_here() -> None:
    ask(Observation(Config(operator=Operator(host="Ops.Internal"))), "ops.internal:8788")


def test_no_browser_speaks_to_a_unix_socket() -> None:
    ask(Observation(), "anything", unix=True)


def test_with_a_token_it_is_needed_whatever_the_host() -> None:
    service = Observation(authority=Door(token=True))
    with pytest.raises(Unauthorized):
        ask(service)
    with pytest.raises(Unauthorized):
        ask(service, token="wrong")
    with pytest.raises(Unauthorized):
        ask(service, unix=True)
    ask(service, "ops.example.org", TOKEN)


def test_a_token_without_the_operate_grant_is_not_enough() -> None:
    with pytest.raises(Forbidden, match="operate"):
        ask(Observation(authority=Door(token=True)), token=WATCHER)


def test_where_the_tokens_holder_looks_is_an_own_origin() -> None:
    service = Observation(Config(auth=Auth(behind_tls_proxy=True)), Door(token=True))
    ask(service, "Ops.Example.org:9443", TOKEN)
    assert service.own_origins == {"http://ops.example.org:9443", "https://ops.example.org:9443"}


def test_nobody_else_makes_an_origin_an_own_one() -> None:
    service = Observation(authority=Door(token=True))
    with pytest.raises(Unauthorized):
        ask(service, "evil.example", "wrong")
    ask(service, "not a host", TOKEN)
    assert service.own_origins == set()
    ask(Observation(), "localhost:1")


def test_own_origins_are_bounded() -> None:
    service = Observation(authority=Door(token=True))
    for number in range(3 * access.MAX_OWN_ORIGINS):
        ask(service, f"host{number}", TOKEN)
    assert len(service.own_origins) == access.MAX_OWN_ORIGINS


def test_own_origins_are_where_it_is_bound() -> None:
    loopback = {f"http://{name}:8788" for name in ("localhost", "127.0.0.1", "[::1]")}
    assert access.own_origins("127.0.0.1", [("127.0.0.1", 8788)]) == loopback
    assert access.own_origins("::1", [("::1", 8788, 0, 0)]) == loopback | {"http://[::1]:8788"}
    assert access.own_origins("10.1.1.1", [("10.1.1.1", 8788)]) == loopback | {"http://10.1.1.1:8788"}
    assert access.own_origins(None, ["/run/ops.sock"]) == set()
