"""Responses as bytes."""

from __future__ import annotations

import json

import pytest

from aep_relay.protocol.errors import InvalidParameter, Refusal
from aep_relay.transport.http import HttpRefusal
from aep_relay.transport.response import refusal, response, stream_head


def fields(data: bytes) -> tuple[str, dict[str, str], bytes]:
    head, _, body = data.partition(b"\r\n\r\n")
    line, *lines = head.decode("latin-1").split("\r\n")
    return line, dict(field.split(": ", 1) for field in lines), body


def test_a_body_is_json_and_has_its_length() -> None:
    line, headers, body = fields(response(200, b'{"ok":true}', keep_alive=True))
    assert line == "HTTP/1.1 200 OK"
    assert headers == {
        "Content-Type": "application/json",
        "Content-Length": "11",
        "Connection": "keep-alive",
    }
    assert body == b'{"ok":true}'


def test_the_type_can_be_another() -> None:
    _, headers, _ = fields(response(200, b"x", [("content-type", "text/plain")], keep_alive=True))
    assert headers["content-type"] == "text/plain"
    assert "Content-Type" not in headers


def test_a_header_that_mentions_the_type_does_not_set_it() -> None:
    _, headers, _ = fields(response(200, b"x", [("Vary", "content-type: x")], keep_alive=True))
    assert headers["Content-Type"] == "application/json"


def test_no_body() -> None:
    assert fields(response(202, keep_alive=False)) == (
        "HTTP/1.1 202 Accepted",
        {"Content-Length": "0", "Connection": "close"},
        b"",
    )
    _, headers, _ = fields(response(204, headers=[("Allow", "GET")], keep_alive=True))
    assert headers == {"Allow": "GET", "Connection": "keep-alive"}


def test_head_has_the_headers_of_the_body() -> None:
    whole = response(200, b"hello", keep_alive=True)
    assert response(200, b"hello", keep_alive=True, head_only=True) == whole.removesuffix(b"hello")


@pytest.mark.parametrize(
    "status", [400, 401, 403, 404, 405, 408, 413, 415, 417, 426, 429, 431, 500, 501, 503, 505]
)
def test_every_status_has_its_line(status: int) -> None:
    assert response(status, keep_alive=False).startswith(b"HTTP/1.1 %d " % status)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("X", "a\r\nSet-Cookie: b"),
        ("X", "a\nb"),
        ("X", "a\rb"),
        ("X", "a\0b"),
        ("X", "€"),
        ("X\r\nY", "a"),
        ("", "a"),
        ("X:", "a"),
        ("X ", "a"),
    ],
)
def test_no_header_breaks_the_framing(name: str, value: str) -> None:
    with pytest.raises(ValueError, match="header"):
        response(200, b"", [(name, value)], keep_alive=True)
    with pytest.raises(ValueError, match="header"):
        stream_head([(name, value)], chunked=True)


def test_refusals_are_json() -> None:
    line, headers, body = fields(refusal(HttpRefusal(431, "limit-exceeded", "too long")))
    assert line.startswith("HTTP/1.1 431 ")
    assert headers["Connection"] == "close"
    assert json.loads(body) == {"error": "limit-exceeded", "detail": "too long"}
    line, headers, body = fields(
        refusal(InvalidParameter("from", "not JSON"), [("Vary", "Origin")], keep_alive=True)
    )
    assert line.startswith("HTTP/1.1 400 ")
    assert headers["Vary"] == "Origin"
    assert json.loads(body)["parameter"] == "from"
    assert refusal(Refusal("limit-exceeded", "many"), head_only=True).endswith(b"\r\n\r\n")


def test_streams_end_with_their_connection() -> None:
    line, headers, body = fields(stream_head([("Content-Type", "text/event-stream")], chunked=True))
    assert line == "HTTP/1.1 200 OK"
    assert headers == {
        "Content-Type": "text/event-stream",
        "Transfer-Encoding": "chunked",
        "Connection": "close",
    }
    assert body == b""
    _, headers, _ = fields(stream_head([], chunked=False))
    assert headers == {"Connection": "close"}
