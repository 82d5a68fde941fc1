"""Whatever is presented as a token: the right answer, nobody disturbed, nothing left behind, nothing told."""

from __future__ import annotations

import io
import json
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import structlog

from aep_relay import logs
from aep_relay.config import Auth
from tests.hardening.client import Answer, Raw, Socket, Stream, ask, event, post, request, upgrade
from tests.hardening.inside import Inside, inside
from tests.installed import installed

TOKEN = "t0ken/of+these=tests"
BEARER = f"Bearer {TOKEN}"

REQUESTS = {
    "post": post(event(1), X="x"),
    "batch": post(event(1) + b"\n" + event(2), X="x"),
    "stream": request("GET", "/stream", X="x"),
    "head": request("HEAD", "/stream", X="x"),
    "socket": upgrade(X="x"),
    "connections": request("GET", "/connections", X="x"),
    "health": request("GET", "/healthz", X="x"),
}
"""Requests with a place for header lines."""
PLACE = b"X: x\r\n"
GOOD = {"post": 202, "batch": 202, "socket": 101}


def presenting(kind: str, *values: bytes, query: bytes = b"") -> bytes:
    """Return the request ``kind`` with an Authorization header for each of ``values``, and ``query`` in its target."""
    data = REQUESTS[kind].replace(PLACE, b"".join(b"Authorization: %b\r\n" % value for value in values))
    return data.replace(b" HTTP/1.1", b"%b HTTP/1.1" % query, 1)


@pytest.fixture(scope="module")
def relay() -> Iterator[Inside]:
    with inside(auth=Auth(token=TOKEN)) as running, running.leaving_nothing():
        yield running


class Healthy:
    """Clients that hold the token; ``check`` says whether anybody disturbed them."""

    def __init__(self, port: int) -> None:
        self.emitter = Raw(port)
        self.stream = Stream(port, "?filter=%7B%22session%22:%22healthy%22%7D", Authorization=BEARER)
        assert self.stream.block() == b": stream open\n\n"
        self.socket = Socket(port, Authorization=BEARER).greet(role="consumer")
        self.socket.subscribe(filter={"session": "healthy"})
        self.sent = 0

    def check(self) -> None:
        sent = event(self.sent, "healthy")
        self.sent += 1
        self.emitter.send(post(sent, Authorization=BEARER))
        assert self.emitter.answer().status == 202
        assert sent in self.stream.block()
        assert self.socket.heard() == json.loads(sent)

    def close(self) -> None:
        for connection in (self.emitter, self.stream, self.socket):
            connection.close()


@pytest.fixture
def healthy(relay: Inside) -> Iterator[Healthy]:
    """Healthy clients before and after; and then the relay holds nothing that it did not hold before."""
    clients = Healthy(relay.port)
    clients.check()
    before = relay.holdings()
    yield clients
    clients.check()
    assert relay.back_at(before) == before
    assert relay.log.errors == []
    clients.close()


def check_refused(answer: Answer, kind: str) -> None:
    """Check that nobody was let in: over HTTP with the answer that is due, for health with what is for everybody."""
    if kind == "health":
        assert (answer.status, answer.json) == (200, {"ok": True})
    elif kind == "head":
        assert (answer.status, answer.body) == (401, b"")
    else:
        assert answer.error == (401, "unauthorized")
        assert answer.headers["www-authenticate"] == "Bearer"


WRONG: dict[str, tuple[bytes, ...]] = {
    "nothing": (),
    "empty": (b"",),
    "scheme alone": (b"Bearer",),
    "empty bearer": (b"Bearer ",),
    "blank bearer": (b"Bearer \t \t",),
    "no scheme": (TOKEN.encode(),),
    "no space": (b"Bearer" + TOKEN.encode(),),
    "other scheme": (b"Basic " + TOKEN.encode(),),
    "two schemes": (b"Bearer Bearer " + TOKEN.encode(),),
    "quoted": (b'Bearer "%b"' % TOKEN.encode(),),
    "encoded": (b"Bearer t0ken%2fof%2bthese%3dtests",),
    "cut": (BEARER.encode()[:-1],),
    "continued": (BEARER.encode() + b"x",),
    "doubled": (b"%b, %b" % (BEARER.encode(), BEARER.encode()),),
    "other case": (BEARER.encode().swapcase(),),
    "utf-8": ("Bearer tökên".encode(),),
    "latin-1": (b"Bearer \xfc\xff",),
    "no text": (b"Bearer " + bytes(range(0x80, 0x100)),),
    "utf-8 around it": (b"Bearer \xef\xbb\xbf%b" % TOKEN.encode(),),
    "long": (b"Bearer " + b"x" * 30_000,),
    "two good ones": (BEARER.encode(), BEARER.encode()),
    "a good and a bad one": (BEARER.encode(), b"Bearer x"),
    "a bad and a good one": (b"Bearer x", BEARER.encode()),
    "a good and an empty one": (BEARER.encode(), b""),
}


@pytest.mark.parametrize("values", WRONG.values(), ids=WRONG)
def test_a_header_that_lets_nobody_in(values: tuple[bytes, ...], relay: Inside, healthy: Healthy) -> None:
    for kind in REQUESTS:
        with Raw(relay.port) as raw:
            raw.send(presenting(kind, *values))
            check_refused(raw.answer(to_head=kind == "head"), kind)
            # The connection is as good as before for who holds the token.
            raw.send(presenting("post", BEARER.encode()))
            assert raw.answer().status == 202


@pytest.mark.parametrize("given", ["", "x", "%00", "%C3%BC", "t0ken/of", "t0ken%2Fof+these%3Dtests"])
def test_a_query_that_lets_nobody_in(given: str, relay: Inside, healthy: Healthy) -> None:
    query = b"access_token=" + given.encode()
    good = b"?access_token=t0ken%2Fof%2Bthese%3Dtests"
    for kind in REQUESTS:
        with Raw(relay.port) as raw:
            raw.send(presenting(kind, query=b"?" + query))
            check_refused(raw.answer(to_head=kind == "head"), kind)
            raw.send(presenting("post", query=good + b"&" + query))
            assert raw.answer().error == (401, "unauthorized")
            raw.send(presenting("post", query=good))
            assert raw.answer().status == 202


@pytest.mark.parametrize(
    "value",
    [
        b"Bearer %b",
        b"bearer %b",
        b"BEARER %b",
        b"bEaReR %b",
        b"Bearer    %b",
        b"  Bearer %b  ",
        b"Bearer \t%b\t",
    ],
)
def test_a_scheme_in_any_case(value: bytes, relay: Inside, healthy: Healthy) -> None:
    for kind in REQUESTS:
        with Raw(relay.port) as raw:
            raw.send(presenting(kind, value % TOKEN.encode()))
            answer = raw.answer(to_head=kind in ("head", "stream"))
            assert answer.status == GOOD.get(kind, 200)
            if kind == "health":
                assert "sessions" in answer.json


@pytest.mark.parametrize(
    "value", [b"Bearer a\0b", b"Bearer a\r\n b", b"Bearer a\nX: y", b"Bearer \x1b[2J", b"Bearer a\rb"]
)
def test_a_header_that_is_none(value: bytes, relay: Inside, healthy: Healthy) -> None:
    for kind in REQUESTS:
        answer = ask(relay.port, presenting(kind, value))
        assert answer.error == (400, "bad-request")
        assert answer.headers["connection"] == "close"


def test_guessing_leaves_nothing_behind(relay: Inside, healthy: Healthy) -> None:
    with Raw(relay.port) as raw:
        for number in range(2000):
            raw.send(request("GET", "/connections", Authorization=f"Bearer {number}"))
            assert raw.answer().error == (401, "unauthorized")


@pytest.fixture
def told(relay: Inside, monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """All that is logged, at the lowest level, by a log that does not know what is secret."""
    stream = io.StringIO()
    logs.configure("debug", "json", stream)
    monkeypatch.setattr(relay.service, "log", structlog.get_logger())
    yield stream
    structlog.reset_defaults()


def test_what_is_presented_is_logged_nowhere(relay: Inside, healthy: Healthy, told: io.StringIO) -> None:
    guess = "a-guess-of-somebody"
    for data in (
        presenting("stream", query=b"?from=x&access_token=" + TOKEN.encode()),
        presenting("connections", b"Bearer " + guess.encode()),
        presenting("connections", query=b"?access_token=" + guess.encode()),
        request("GET", f"/{guess}?access_token={guess}", Referer=f"http://x/?access_token={guess}"),
        request("BREW", f"/?access_token={guess}"),
        b"GET /?access_token=%b HTTP/1.1\r\nHost: a b\r\n\r\n" % guess.encode(),
        b"GET /?access_token=%b HTTP/3.0\r\n\r\n" % guess.encode(),
        upgrade(f"/socket?access_token={guess}"),
    ):
        answer = ask(relay.port, data)
        assert answer.status >= 400
        assert guess.encode() not in answer.body
        assert TOKEN.encode() not in answer.body
    with Socket(relay.port, target="/socket?access_token=t0ken%2Fof%2Bthese%3Dtests") as socket:
        socket.greet()
        socket.say({"type": "subscribe", "id": TOKEN, "filter": {"a b": 1}})
        assert socket.heard()["code"] == "invalid-filter"
    log = told.getvalue()
    assert '"connection opened"' in log
    assert guess not in log
    assert TOKEN not in log
    assert "t0ken%2F" not in log


def test_the_token_is_in_no_log_error_or_metric(tmp_path: Path) -> None:
    """The installed daemon at its most talkative, and all that its operator plane shows."""
    config = "[operator]\nport = 0\n[log]\nlevel = 'debug'\n"
    with installed(tmp_path, config, AEP_TOKEN=TOKEN) as relay:
        port = operator = 0
        while not (port and operator):
            for line in list(relay.lines):
                record = json.loads(line)
                if record["event"] in ("listening", "operator plane listening"):
                    number = int(record["addresses"][0].rpartition(":")[2])
                    port, operator = (number, operator) if record["event"] == "listening" else (port, number)
        with Socket(port, target="/socket?access_token=t0ken%2Fof%2Bthese%3Dtests") as socket:
            socket.greet(identity={"agent": TOKEN, "instance": TOKEN})
            socket.event(event(0, TOKEN))
            assert socket.ask({"type": "nonsense", TOKEN: TOKEN, "t": 1} | {"type": "ping"})["type"] == "pong"
            headers = {"Authorization": BEARER}
            shown = ""
            with httpx.Client(base_url=f"http://127.0.0.1:{operator}", headers=headers, timeout=30) as client:
                for path in (
                    "/metrics",
                    "/config",
                    "/health/ready",
                    "/nowhere",
                    f"/metrics?access_token={TOKEN}",
                ):
                    shown += client.get(path).text
                for path in ("/connections", "/sessions"):
                    # Who names an agent or a session after the token has told it himself.
                    assert client.get(path).status_code == 200
            assert "aep_relay_events_received_total 1.0" in shown
            assert TOKEN not in shown
            assert ask(port, request("GET", "/stream?from=x", Authorization=BEARER)).status == 400
        assert relay.end(signal.SIGTERM) == 0
        log = "".join(relay.lines)
        assert "connection closed" in log
        assert TOKEN not in log
        assert "t0ken%2Fof%2Bthese%3Dtests" not in log


def test_an_empty_variable_is_no_token(tmp_path: Path) -> None:
    with installed(tmp_path, AEP_TOKEN="") as relay:
        port = relay.port()
        for value in ("", "Bearer ", "Bearer", "Bearer x"):
            assert ask(port, post(event(0), Authorization=value)).status == 202
            with Socket(port, Authorization=value) as target, Socket(port, Authorization=value) as sender:
                target.greet(role="emitter", capabilities={"control": {"accepts": ["control.cancel"]}})
                target.event(event(1))
                assert target.is_alive()
                sender.greet()
                sender.event(event(None, id="c", type="control.cancel"))
                refusal = sender.heard()
                assert (refusal["code"], refusal["cause"]) == ("unauthorized", "c")


def test_an_empty_variable_opens_no_relay_to_the_network(tmp_path: Path) -> None:
    config = "[auth]\nbehind_tls_proxy = true\n"
    with installed(tmp_path, config, AEP_TOKEN="") as relay:
        assert relay.end() == 2
        (line,) = relay.lines
        assert "needs a token" in line
