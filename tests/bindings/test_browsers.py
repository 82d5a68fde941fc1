"""What a page in a browser can make its visitor's browser do to a relay on the same machine: nothing."""

from __future__ import annotations

import pytest

from aep_relay.config import Auth, Config, Cors
from tests.bindings.governed import bearer, governed, token
from tests.bindings.served import (
    BEARER,
    JSON,
    TOKEN,
    Answer,
    Served,
    event,
    request,
    serving,
    settle,
    take_answer,
)

EVIL = "evil.example"
REQUESTS = [
    ("GET", "/healthz"),
    ("GET", "/connections"),
    ("GET", "/events"),
    ("HEAD", "/events"),
    ("GET", "/.well-known/aep"),
    ("POST", "/events"),
    ("GET", "/stream"),
    ("GET", "/stream?from=all&live=0"),
    ("HEAD", "/stream"),
    ("GET", "/socket"),
    ("GET", "/nowhere"),
    ("DELETE", "/events"),
]


async def ask(relay: Served, method: str, path: str, headers: dict[str, str], *, unix: bool = False) -> int:
    """Return the status of the answer, 101 for an upgrade."""
    wire = relay.connect()
    if unix:
        wire.peer_name = "unix:pid=1,uid=0"
    more = dict(headers)
    if path == "/socket":
        more |= {
            "Connection": "Upgrade",
            "Upgrade": "websocket",
            "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
            "Sec-WebSocket-Version": "13",
        }
    body = event() if method == "POST" else None
    wire.feed(request(method, path, body, {**(JSON if body else {}), **more}))
    await settle()
    status = int(wire.take_sent().split(b" ", 2)[1])
    wire.feed_end()
    await settle()
    return status


def usual(method: str, path: str) -> int:
    if path == "/socket":
        return 101
    return {"/nowhere": 404}.get(path, {"POST": 202, "DELETE": 405}.get(method, 200))


def untouched(relay: Served) -> bool:
    relay_ = relay.relay
    return relay_.stats.received_events == 0 and relay_.stats.connections_total == 0


@pytest.mark.parametrize(("method", "path"), REQUESTS)
class TestWithoutAToken:
    @pytest.mark.parametrize("host", [EVIL, f"{EVIL}:8787", "relay", "192.0.2.1", "localhost.evil.example"])
    @pytest.mark.parametrize(
        "origin", [{}, {"Origin": f"http://{EVIL}:8787"}, {"Origin": "http://localhost"}]
    )
    async def test_a_name_made_to_lead_here(
        self, method: str, path: str, host: str, origin: dict[str, str]
    ) -> None:
        async with serving() as relay:
            assert await ask(relay, method, path, {"Host": host, **origin}) == 403
            assert untouched(relay)

    @pytest.mark.parametrize(
        "origin", [f"http://{EVIL}", "https://localhost.evil.example", "null", "", "\xff"]
    )
    async def test_a_page_from_elsewhere(self, method: str, path: str, origin: str) -> None:
        async with serving() as relay:
            assert await ask(relay, method, path, {"Host": "127.0.0.1:8787", "Origin": origin}) == 403
            assert untouched(relay)

    @pytest.mark.parametrize(
        "host", ["localhost", "LocalHost:8787", "127.0.0.1:8787", "127.1.2.3", "[::1]:8787"]
    )
    @pytest.mark.parametrize("origin", [{}, {"Origin": "http://localhost:3000"}, {"Origin": "http://[::1]"}])
    async def test_a_page_of_this_machine_and_what_is_no_page(
        self, method: str, path: str, host: str, origin: dict[str, str]
    ) -> None:
        async with serving() as relay:
            assert await ask(relay, method, path, {"Host": host, **origin}) == usual(method, path)

    async def test_a_unix_socket_has_no_name(self, method: str, path: str) -> None:
        async with serving() as relay:
            assert await ask(relay, method, path, {"Host": EVIL}, unix=True) == usual(method, path)
            assert (
                await ask(relay, method, path, {"Host": EVIL, "Origin": f"http://{EVIL}"}, unix=True) == 403
            )

    async def test_what_is_allowed_by_name(self, method: str, path: str) -> None:
        cors = Cors(allowed_origins=("https://page.example",), allowed_hosts=("relay.example",))
        async with governed(config=Config(cors=cors)) as relay:
            for host, origin, allowed in (
                ("relay.example", "https://page.example", True),
                ("Relay.Example:80", "https://page.example", True),
                ("localhost", "https://page.example", True),
                ("relay.example", "https://evil.example", False),
                ("relay.example", "http://localhost", False),
                ("evil.example", "https://page.example", False),
                ("sub.relay.example", "https://page.example", False),
            ):
                found = await ask(relay, method, path, {"Host": host, "Origin": origin})
                assert found == (usual(method, path) if allowed else 403), (host, origin)

    async def test_the_dashboard_is_a_page_of_this_relay(self, method: str, path: str) -> None:
        cors = Cors(allowed_origins=("https://page.example",))
        async with governed(config=Config(cors=cors)) as relay:
            relay.service.own_origins.add("http://127.0.0.1:8788")
            found = await ask(relay, method, path, {"Host": "localhost", "Origin": "http://127.0.0.1:8788"})
            assert found == usual(method, path)


@pytest.mark.parametrize(("method", "path"), REQUESTS)
@pytest.mark.parametrize("simple", [True, False])
async def test_with_a_token_names_and_pages_do_not_matter(method: str, path: str, simple: bool) -> None:
    auth = Auth(token=TOKEN if simple else None)
    tokens = () if simple else (token("t", "emit", "consume", "operate"),)
    async with governed(*tokens, config=Config(auth=auth)) as relay:
        held = BEARER if simple else bearer("t")
        page = {"Host": EVIL, "Origin": f"http://{EVIL}"}
        assert await ask(relay, method, path, {**page, **held}) == usual(method, path)


async def test_a_preflight_of_a_foreign_page_allows_nothing() -> None:
    async with serving() as relay:
        preflight = {"Origin": f"http://{EVIL}", "Access-Control-Request-Method": "POST"}
        answer = await relay.ask("OPTIONS", "/events", None, preflight)
        assert answer.status == 204
        assert not [name for name in answer.headers if name.startswith("access-control-")]
        answer = await relay.ask("OPTIONS", "/events", None, {**preflight, "Host": EVIL})
        assert answer.refusal == (403, "unauthorized")


def refused(data: bytes) -> Answer:
    answer, rest = take_answer(data)
    assert rest == b""
    return answer


async def test_a_refusal_says_where_to_look_and_lets_no_page_read_it() -> None:
    async with serving() as relay:
        for headers, setting in (
            ({"Host": EVIL, "Origin": f"http://{EVIL}"}, "cors.allowed_hosts"),
            ({"Origin": f"http://{EVIL}"}, "cors.allowed_origins"),
        ):
            answer = await relay.ask("GET", "/healthz", None, headers)
            assert answer.refusal == (403, "unauthorized")
            assert setting in answer.json["detail"]
            assert answer.headers["vary"] == "Origin"
            assert "access-control-allow-origin" not in answer.headers


async def test_a_client_that_knows_no_host_is_no_browser() -> None:
    async with serving() as relay:
        wire = relay.connect()
        wire.feed(b"GET /healthz HTTP/1.0\r\n\r\n")
        await settle()
        assert take_answer(wire.take_sent())[0].status == 200
        # The absolute form says which name is meant (RFC 9112 §3.2.2).
        assert (await relay.ask("GET", f"http://{EVIL}/healthz")).status == 403
        assert (await relay.ask("GET", "http://localhost/healthz", None, {"Host": EVIL})).status == 200


async def test_a_page_is_refused_before_its_upload_and_while_draining() -> None:
    async with serving() as relay:
        wire = relay.connect()
        wire.feed(b"POST /events HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 1000000\r\n\r\n")
        await settle()
        assert refused(wire.take_sent()).status == 403
        relay.service.draining = True
        assert (await relay.ask("GET", "/healthz", None, {"Host": EVIL})).status == 403


async def test_a_connection_that_is_kept_is_asked_each_time() -> None:
    async with serving() as relay:
        wire = relay.connect()
        for host, status in (("localhost", 200), (EVIL, 403), ("localhost", 200)):
            wire.feed(request("GET", "/healthz", None, {"Host": host}))
            await settle()
            assert take_answer(wire.take_sent())[0].status == status


async def test_a_page_is_told_when_to_come_again() -> None:
    async with governed(token("t", "emit", events_per_second=0.1)) as relay:
        page = {**bearer("t"), "Origin": "https://page.example"}
        await relay.post(event(), headers=page)
        answer = await relay.post(event(), headers=page)
        assert answer.status == 429
        assert answer.headers["access-control-allow-origin"] == "https://page.example"
        assert answer.headers["access-control-expose-headers"] == "Retry-After"
        assert int(answer.headers["retry-after"]) == 10
