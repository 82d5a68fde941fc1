from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.bindings.served import BEARER, JSON, TOKEN, Answer, Served, command, event, hello, serving

PROTECTED = [
    ("POST", "/events"),
    ("GET", "/stream"),
    ("HEAD", "/stream"),
    ("GET", "/socket"),
    ("GET", "/connections"),
]
OPEN = [("GET", "/events"), ("GET", "/.well-known/aep"), ("GET", "/healthz"), ("OPTIONS", "/events")]


async def ask(relay: Served, method: str, path: str, query: str, headers: Mapping[str, str]) -> int:
    """Return the status of an otherwise good request."""
    if path == "/socket":
        socket = await relay.socket(query, headers)
        socket.heard()
        return 101 if socket.refused is None else socket.refused.status
    if (method, path) == ("GET", "/stream"):
        stream = await relay.stream(query, headers)
        stream.read()
        assert stream.head is not None
        return stream.head.status
    if method == "POST":
        return (await relay.ask(method, path + query, event(), {**JSON, **headers})).status
    return (await relay.ask(method, path + query, None, headers)).status


GOOD = {"GET": 200, "HEAD": 200, "POST": 202, "OPTIONS": 204}


def good(method: str, path: str) -> int:
    return 101 if path == "/socket" else GOOD[method]


@pytest.mark.parametrize(("method", "path"), PROTECTED)
@pytest.mark.parametrize(
    ("query", "headers"),
    [
        ("", {"Authorization": f"Bearer {TOKEN}"}),
        ("", {"Authorization": f"bearer {TOKEN}"}),
        ("", {"Authorization": f"BEARER   {TOKEN}  "}),
        (f"?access_token={TOKEN}", {}),
        ("?access%5Ftoken=t0ken%2dof-the-tests", {}),
        ("?access_token=wrong", {"Authorization": f"Bearer {TOKEN}"}),
    ],
)
async def test_who_shows_the_token_may(method: str, path: str, query: str, headers: dict[str, str]) -> None:
    async with serving(token=TOKEN) as relay:
        assert await ask(relay, method, path, query, headers) == good(method, path)


@pytest.mark.parametrize(("method", "path"), PROTECTED)
@pytest.mark.parametrize(
    ("query", "headers"),
    [
        ("", {}),
        ("", {"Authorization": f"Bearer {TOKEN}x"}),
        ("", {"Authorization": f"Bearer {TOKEN[:-1]}"}),
        ("", {"Authorization": "Bearer "}),
        ("", {"Authorization": "Bearer"}),
        ("", {"Authorization": TOKEN}),
        ("", {"Authorization": f"Basic {TOKEN}"}),
        ("", {"Authorization": "Bearer \xfc"}),
        ("?access_token=", {}),
        ("?access_token=wrong", {}),
        ("?access_token=%C3%BC", {}),
        (f"?access_token={TOKEN}&access_token={TOKEN}", {}),
        (f"?ACCESS_TOKEN={TOKEN}", {}),
        (f"?access_token={TOKEN}", {"Authorization": "Bearer wrong"}),
        (f"?token={TOKEN}", {"Cookie": f"access_token={TOKEN}"}),
    ],
)
async def test_who_does_not_may_not(method: str, path: str, query: str, headers: dict[str, str]) -> None:
    async with serving(token=TOKEN) as relay:
        assert await ask(relay, method, path, query, headers) == 401
        assert relay.relay.peers == {}
        assert relay.relay.stats.received_events == 0


async def test_a_refusal_says_what_is_asked_for() -> None:
    async with serving(token=TOKEN) as relay:
        answers: list[Answer] = [await relay.post(event()), await relay.ask("GET", "/connections")]
        for answer in answers:
            assert answer.refusal == (401, "unauthorized")
            assert answer.headers["www-authenticate"] == "Bearer"
        stream = await relay.stream()
        stream.read()
        assert stream.head is not None
        assert stream.head.refusal == (401, "unauthorized")


@pytest.mark.parametrize(("method", "path"), OPEN)
@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong"}])
async def test_what_needs_no_token(method: str, path: str, headers: dict[str, str]) -> None:
    async with serving(token=TOKEN) as relay:
        assert await ask(relay, method, path, "", headers) == good(method, path)


@pytest.mark.parametrize(("method", "path"), PROTECTED)
async def test_the_query_token_can_be_switched_off(method: str, path: str) -> None:
    async with serving(token=TOKEN, query_token=False) as relay:
        assert await ask(relay, method, path, f"?access_token={TOKEN}", {}) == 401
        assert await ask(relay, method, path, "", BEARER) == good(method, path)
        assert await ask(relay, method, path, f"?access_token={TOKEN}", BEARER) == good(method, path)


@pytest.mark.parametrize(("method", "path"), PROTECTED)
@pytest.mark.parametrize("headers", [{}, BEARER])
async def test_without_a_token_observation_and_emission_work(
    method: str, path: str, headers: dict[str, str]
) -> None:
    async with serving() as relay:
        assert await ask(relay, method, path, "", headers) == good(method, path)


@pytest.mark.parametrize("headers", [{}, BEARER])
async def test_without_a_token_control_is_unauthorized(headers: dict[str, str]) -> None:
    async with serving() as relay:
        target = await relay.greeted(
            "emitter", "worker", {"control": {"accepts": ["control.cancel"]}}, headers=headers
        )
        await target.ask(event(0, "s"))
        sender = await relay.greeted("both", headers=headers)
        (error,) = await sender.ask(command("s"))
        assert (error["type"], error["code"], error["cause"]) == ("error", "unauthorized", "c-1")
        assert error["detail"]
        assert await sender.ask({"type": "ping", "t": 1}) == [{"type": "pong", "t": 1}]
        assert target.raw() == []


async def test_the_token_is_in_no_answer() -> None:
    async with serving(token=TOKEN) as relay:
        socket = await relay.socket(f"?access_token={TOKEN}")
        told = str(await socket.ask(hello()))
        for path in ("/connections", "/healthz", "/nowhere", "/stream?from=x"):
            answer = await relay.ask("GET", path + ("&" if "?" in path else "?") + f"access_token={TOKEN}")
            told += str(answer)
        assert TOKEN not in told


async def test_the_token_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[bytes, bytes]] = []

    def compare(one: bytes, other: bytes) -> bool:
        seen.append((one, other))
        return one == other

    monkeypatch.setattr("hmac.compare_digest", compare)
    async with serving(token=TOKEN) as relay:
        for token, status in ((TOKEN, 200), ("x", 401), ("x" * 1000, 401)):
            answer = await relay.ask("GET", "/connections", None, {"Authorization": f"Bearer {token}"})
            assert answer.status == status
    # Of one length whatever was presented, or the time taken would tell the token's.
    assert [(len(one), len(other)) for one, other in seen] == [(32, 32)] * 3
