"""Heads of requests: what they mean, and which are refused."""

from __future__ import annotations

import sys
from contextlib import suppress
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aep_relay.transport.request import MAX_STRAY_PERCENT_SIGNS, HttpRefusal, Request, parse_head

HOST = b"Host: localhost:8787\r\n"


def head(line: bytes = b"GET / HTTP/1.1", *fields: bytes, host: bytes = HOST) -> bytes:
    return line + b"\r\n" + host + b"".join(field + b"\r\n" for field in fields) + b"\r\n"


def get(target: bytes, *fields: bytes) -> Request:
    return parse_head(head(b"GET " + target + b" HTTP/1.1", *fields))


def refused(data: bytes) -> HttpRefusal:
    with pytest.raises(HttpRefusal) as caught:
        parse_head(data)
    return caught.value


def test_a_request_is_taken_apart() -> None:
    raw = head(
        b"POST /events?a=1 HTTP/1.1", b"Content-Type:  application/json \t", b"X-A: 1", b"x-a: 2", b"X-Empty:"
    )
    request = parse_head(raw)
    assert request.method == "POST"
    assert request.target == b"/events?a=1"
    assert request.path == "/events"
    assert request.query == {"a": ["1"]}
    assert request.http_version == "1.1"
    assert request.host == "localhost:8787"
    assert request.raw_head == raw
    assert request.headers[1:] == [
        (b"content-type", b"application/json"),
        (b"x-a", b"1"),
        (b"x-a", b"2"),
        (b"x-empty", b""),
    ]
    assert request.get(b"content-type") == b"application/json"
    assert request.get(b"x-a") == b"1"
    assert request.get(b"x-empty") == b""
    assert request.get(b"x-none") is None
    assert request.get_all(b"x-a") == [b"1", b"2"]
    assert request.get_all(b"x-none") == []
    assert request.content_length is None
    assert not request.chunked


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        (b"/", "/", {}),
        (b"/stream?", "/stream", {}),
        (b"/%73tream", "/stream", {}),
        (b"/a%2Fb", "/a/b", {}),
        (b"/a/../b", "/a/../b", {}),
        (b"//events", "//events", {}),
        (b"//evil.example/events", "//evil.example/events", {}),
        (b"/%00%0d%0a", "/\0\r\n", {}),
        (b"/100%", "/100%", {}),
        (b"/%zz%4", "/%zz%4", {}),
        (b"/%E2%82%AC", "/€", {}),
        (b"/p+q", "/p+q", {}),
        (b"/?a=1&b=2&a=3", "/", {"a": ["1", "3"], "b": ["2"]}),
        (b"/?a&b=&=c&&", "/", {"a": [""], "b": [""], "": ["c"]}),
        (b"/?a=b=c?d/e", "/", {"a": ["b=c?d/e"]}),
        (b"/?q=a+b%2Bc%20d%26e%3Df", "/", {"q": ["a b+c d&e=f"]}),
        (b"/?q=100%&r=%zz", "/", {"q": ["100%"], "r": ["%zz"]}),
        (b"/?%61=%C3%A9%00", "/", {"a": ["é\0"]}),
        (b'/?f={"a":[1],"b":"|^`\\"}', "/", {"f": ['{"a":[1],"b":"|^`\\"}']}),
        (b"/?a=1;b=2", "/", {"a": ["1;b=2"]}),
    ],
)
def test_targets(target: bytes, path: str, query: dict[str, list[str]]) -> None:
    request = get(target)
    assert (request.path, request.query) == (path, query)


@pytest.mark.parametrize(
    ("target", "path", "host"),
    [
        (b"http://relay.example:1/events?a=1", "/events", "relay.example:1"),
        (b"HTTPS://relay.example/events", "/events", "relay.example"),
        (b"http://relay.example", "/", "relay.example"),
        (b"http://[::1]:8787?a=1", "/", "[::1]:8787"),
        (b"http://relay.example//x", "//x", "relay.example"),
    ],
)
def test_the_absolute_form_names_the_host(target: bytes, path: str, host: str) -> None:
    request = get(target)
    assert (request.path, request.host) == (path, host)


def test_the_asterisk_form_is_for_options() -> None:
    assert parse_head(head(b"OPTIONS * HTTP/1.1")).path == "*"


@pytest.mark.parametrize(
    "target",
    [
        b"*",
        b"events",
        b"relay.example:80",
        b"ftp://relay.example/",
        b"http:///events",
        b"http://user@relay.example/",
        b"http://relay.example:port/",
        b"http:/events",
        b"/a#fragment",
        b"/caf\xc3\xa9",
        b"/\x7f",
        b"/%ff",
        b"/?q=%ff",
        b"/?%c3=1",
        b"/?q=%ed%a0%80",
        b"/?" + b"&".join(b"a=%d" % number for number in range(201)),
    ],
)
def test_malformed_targets(target: bytes) -> None:
    assert refused(head(b"GET " + target + b" HTTP/1.1")).http_status == 400


@given(st.lists(st.sampled_from(["%", "2", "5", "x", "\\", "%25", "%5C", "%5c", "+", "u"])).map("".join))
def test_escapes_are_undone_once_and_strays_stand_for_themselves(text: str) -> None:
    request = get(f"/{text}?q={text}".encode())
    assert request.path == unquote(f"/{text}", errors="strict")
    assert request.query == {"q": [unquote(text.replace("+", " "), errors="strict")]}


@pytest.mark.parametrize("target", [b"/%s", b"/?q=%s", b"/?%s=1", b"http://relay.example/%s"])
@pytest.mark.parametrize("stray", [b"%", b"%z", b"%4", b"%4z", b"%%41", b"&%"])
def test_percent_signs_that_begin_no_escape_are_bounded(target: bytes, stray: bytes) -> None:
    most = MAX_STRAY_PERCENT_SIGNS if b"&" not in stray else 100
    strays = stray * most + (MAX_STRAY_PERCENT_SIGNS - most) * b"%"
    assert get(target % strays + b"z").target
    assert "percent signs" in refused(head(b"GET " + target % (strays + b"%z") + b" HTTP/1.1")).detail


@pytest.mark.parametrize("escape", [b"%41", b"%41b", b"%25", b"%c3%a9", b"%5C"])
def test_escapes_are_undone_in_one_step_however_many(escape: bytes) -> None:
    def steps(target: bytes) -> int:
        taken = 0

        def note(*_: object) -> None:
            nonlocal taken
            taken += 1

        before = sys.getprofile()
        sys.setprofile(note)
        try:
            get(target)
        finally:
            sys.setprofile(before)
        return taken

    assert steps(b"/stream?filter=" + escape * 10_000) == steps(b"/stream?filter=" + escape)


SMUGGLING = {
    "length beside coding": [b"Content-Length: 5", b"Transfer-Encoding: chunked"],
    "coding beside length": [b"Transfer-Encoding: chunked", b"Content-Length: 5"],
    "two lengths": [b"Content-Length: 5", b"Content-Length: 6"],
    "the same length twice": [b"Content-Length: 5", b"Content-Length: 5"],
    "a list of lengths": [b"Content-Length: 5, 5"],
    "a signed length": [b"Content-Length: +5"],
    "a negative length": [b"Content-Length: -5"],
    "a hexadecimal length": [b"Content-Length: 0x5"],
    "a length with an underscore": [b"Content-Length: 1_0"],
    "a length in other digits": ["Content-Length: \N{ARABIC-INDIC DIGIT FIVE}".encode()],
    "an empty length": [b"Content-Length:"],
    "a length of two numbers": [b"Content-Length: 5 5"],
    "a fractional length": [b"Content-Length: 5.0"],
    "a length beyond 64 bits": [b"Content-Length: 99999999999999999999"],
    "a length at the end of 64 bits": [b"Content-Length: 18446744073709551615"],
    "a length with a vertical tab": [b"Content-Length: \x0b5"],
    "two codings": [b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"],
    "a coding twice": [b"Transfer-Encoding: chunked, chunked"],
    "a coding after chunked": [b"Transfer-Encoding: chunked, gzip"],
    "an empty coding": [b"Transfer-Encoding:"],
    "a space before the colon": [b"Content-Length : 5"],
    "a tab before the colon": [b"Transfer-Encoding\t: chunked"],
    "a folded line": [b"X: a\r\n b"],
    "a line folded with a tab": [b"X: a\r\n\tb"],
    "a folded coding": [b"Transfer-Encoding:\r\n chunked"],
    "a bare LF": [b"X: a\nContent-Length: 5"],
    "a bare CR": [b"X: a\rContent-Length: 5"],
    "a CR before CR LF": [b"X: a\r"],
    "a NUL in a value": [b"X: a\0b"],
    "a NUL in a name": [b"X\0: a"],
    "a control character": [b"X: \x01"],
    "a DEL": [b"X: \x7f"],
    "no colon": [b"X"],
    "an empty name": [b": a"],
    "a name that is not ASCII": [b"X\xe9: a"],
    "a name in parentheses": [b"(X): a"],
    "a second host": [b"Host: elsewhere"],
    "a second host, the same": [HOST[:-2]],
}


@pytest.mark.parametrize("fields", SMUGGLING.values(), ids=SMUGGLING)
@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_what_two_readers_could_read_differently_is_refused(fields: list[bytes], version: bytes) -> None:
    assert refused(head(b"POST /events HTTP/" + version, *fields)).http_status == 400


@pytest.mark.parametrize(
    "coding", [b"gzip", b"gzip, chunked", b"xchunked", b"identity", b'"chunked"', b"chunked;q=1"]
)
def test_codings_that_are_not_known(coding: bytes) -> None:
    assert refused(head(b"POST / HTTP/1.1", b"Transfer-Encoding: " + coding)).http_status in (400, 501)


def test_chunked_in_any_case() -> None:
    request = parse_head(head(b"POST / HTTP/1.1", b"transfer-ENCODING:\tChUnKeD "))
    assert request.chunked
    assert request.content_length is None


def test_chunked_in_http_1_0_is_refused() -> None:
    assert refused(head(b"POST / HTTP/1.0", b"Transfer-Encoding: chunked")).http_status == 400


@pytest.mark.parametrize(("value", "expected"), [(b"0", 0), (b" 5 ", 5), (b"007", 7)])
def test_lengths(value: bytes, expected: int) -> None:
    assert parse_head(head(b"POST / HTTP/1.1", b"Content-Length:" + value)).content_length == expected


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"GET",
        b"GET /",
        b"GET / ",
        b"GET /  HTTP/1.1",
        b"GET  / HTTP/1.1",
        b" GET / HTTP/1.1",
        b"GET\t/ HTTP/1.1",
        b"GET / HTTP/1.1 ",
        b"GET / a HTTP/1.1",
        b"GET / HTTP/1",
        b"GET / HTTP/1.1.1",
        b"GET / http/1.1",
        b"GET / ICY/1.1",
        b"G@T / HTTP/1.1",
        b"GET /\0 HTTP/1.1",
        b"GET / HTTP/1.1\n",
        b"\x16\x03\x01\x02\x00",
    ],
)
def test_malformed_request_lines(line: bytes) -> None:
    assert refused(head(line)).http_status == 400


@pytest.mark.parametrize("version", [b"0.9", b"1.2", b"2.0", b"3.0", b"10.1"])
def test_versions_that_are_not_spoken(version: bytes) -> None:
    assert refused(head(b"GET / HTTP/" + version)).http_status == 505


def test_the_preface_of_http_2() -> None:
    assert refused(b"PRI * HTTP/2.0\r\n\r\n").http_status == 505


@pytest.mark.parametrize("method", [b"BREW", b"get", b"FOO-BAR"])
def test_methods_that_are_not_known(method: bytes) -> None:
    assert refused(head(method + b" / HTTP/1.1")).http_status == 501


@pytest.mark.parametrize("target", [b"relay.example:80", b"/"])
def test_connect_is_not_implemented(target: bytes) -> None:
    assert refused(head(b"CONNECT " + target + b" HTTP/1.1")).http_status in (400, 501)


@pytest.mark.parametrize(
    "method", [b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"OPTIONS", b"PATCH", b"TRACE"]
)
def test_methods_that_are_known(method: bytes) -> None:
    assert parse_head(head(method + b" / HTTP/1.1")).method == method.decode()


@pytest.mark.parametrize(
    "host",
    [
        b"a b",
        b"a/b",
        b"a@b",
        b"a?b",
        b"a#b",
        b"[::1",
        b"::1",
        b"a:b",
        b"a:1:2",
        b"caf\xc3\xa9",
        b'a"b',
        b"a<b>",
    ],
)
def test_malformed_hosts(host: bytes) -> None:
    assert refused(head(host=b"Host: " + host + b"\r\n")).http_status == 400


@pytest.mark.parametrize("host", [b"", b"localhost", b"127.0.0.1:8787", b"[::1]:8787", b"a-b_c.example.:80"])
def test_hosts(host: bytes) -> None:
    assert parse_head(head(host=b"Host: " + host + b"\r\n")).host == host.decode()


def test_a_host_is_required_by_http_1_1_only() -> None:
    assert refused(head(host=b"")).http_status == 400
    assert parse_head(head(b"GET / HTTP/1.0", host=b"")).host == ""


@pytest.mark.parametrize(
    ("version", "fields", "expected"),
    [
        (b"1.1", [], True),
        (b"1.0", [], False),
        (b"1.1", [b"Connection: close"], False),
        (b"1.1", [b"Connection: Close"], False),
        (b"1.1", [b"Connection: x, close"], False),
        (b"1.1", [b"Connection: x", b"Connection: close"], False),
        (b"1.1", [b"Connection: keep-alive, close"], False),
        (b"1.1", [b"Connection: closed"], True),
        (b"1.0", [b"Connection: Keep-Alive"], True),
        (b"1.0", [b"Connection: keep-alive, close"], False),
        (b"1.0", [b"Connection: x"], False),
    ],
)
def test_keep_alive(version: bytes, fields: list[bytes], expected: bool) -> None:
    assert parse_head(head(b"GET / HTTP/" + version, *fields)).keep_alive is expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ([b"Connection: Upgrade", b"Upgrade: websocket"], True),
        ([b"connection: keep-alive, UPGRADE", b"upgrade: WebSocket"], True),
        ([b"Connection: keep-alive", b"Connection: upgrade", b"Upgrade: websocket"], True),
        ([b"Connection:upgrade ,\tkeep-alive", b"Upgrade: h2c", b"Upgrade: websocket"], True),
        ([b"Connection: Upgrade", b"Upgrade: h2c, websocket"], True),
        ([b"Upgrade: websocket"], False),
        ([b"Connection: keep-alive", b"Upgrade: websocket"], False),
        ([b"Connection: Upgrade"], False),
        ([b"Connection: Upgrade", b"Upgrade: h2c"], False),
        ([b'Connection: "upgrade"', b"Upgrade: websocket"], False),
        ([b"Connection: Upgrade", b"Upgrade: websocket/13"], False),
        ([b"Connection: Upgrade", b"Upgrade: websocket", b"Content-Length: 0"], True),
    ],
)
def test_upgrade_to_websocket(fields: list[bytes], expected: bool) -> None:
    assert get(b"/socket", *fields).upgrade_websocket is expected


def test_only_get_in_http_1_1_upgrades() -> None:
    fields = [b"Connection: Upgrade", b"Upgrade: websocket"]
    assert not parse_head(head(b"POST / HTTP/1.1", *fields)).upgrade_websocket
    assert not parse_head(head(b"GET / HTTP/1.0", *fields)).upgrade_websocket


@pytest.mark.parametrize("framing", [b"Content-Length: 5", b"Transfer-Encoding: chunked"])
def test_an_upgrade_with_a_body_is_refused(framing: bytes) -> None:
    raw = head(b"GET /socket HTTP/1.1", b"Connection: Upgrade", b"Upgrade: websocket", framing)
    assert refused(raw).http_status == 400


def test_expectations() -> None:
    post = b"POST / HTTP/1.1"
    assert not parse_head(head(post)).expect_continue
    assert parse_head(head(post, b"Expect: 100-Continue")).expect_continue
    assert not parse_head(head(b"POST / HTTP/1.0", b"Expect: 100-continue")).expect_continue
    assert refused(head(post, b"Expect: 200-ok")).http_status == 417
    assert refused(head(post, b"Expect: 100-continue, x")).http_status == 417


def test_too_many_fields() -> None:
    assert len(get(b"/", *[b"X: 1"] * 199).headers) == 200
    assert refused(head(b"GET / HTTP/1.1", *[b"X: 1"] * 200)).http_status == 431


def test_no_refusal_repeats_what_was_sent() -> None:
    secret = b"s3cret"
    for raw in (
        head(b"GET /" + secret + b"\x7f HTTP/1.1"),
        head(secret + b" / HTTP/1.1"),
        head(b"POST / HTTP/1.1", b"Transfer-Encoding: " + secret),
        head(b"POST / HTTP/1.1", b"Content-Length: " + secret),
        head(b"POST / HTTP/1.1", b"Expect: " + secret),
        head(host=b"Host: @" + secret + b"\r\n"),
        head(b"GET / HTTP/1.1", secret),
        head(b"GET /?" + secret + b"=%ff HTTP/1.1"),
    ):
        refusal = refused(raw)
        assert secret.decode() not in refusal.detail
        assert secret.decode() not in str(refusal)
        assert refusal.code


ALPHABET = st.sampled_from(
    [
        b"GET ",
        b"/",
        b" HTTP/1.1",
        b"\r\n",
        b"\n",
        b"\r",
        b" ",
        b"\t",
        b":",
        b"Host",
        b"Content-Length",
        b"chunked",
        b"%",
    ]
    + [bytes([byte]) for byte in (0, 1, 0x0B, 0x23, 0x2C, 0x31, 0x41, 0x7F, 0x80, 0xC3, 0xFF)]
)


@given(st.lists(ALPHABET, max_size=40).map(b"".join))
def test_any_head_is_parsed_or_refused(middle: bytes) -> None:
    for raw in (head(middle), head(b"GET / HTTP/1.1", middle), head(b"GET /" + middle + b" HTTP/1.1")):
        with suppress(HttpRefusal):
            request = parse_head(raw)
            assert raw.count(b"\n") == raw.count(b"\r") == len(request.headers) + 2
            assert b"\0" not in raw


@given(st.binary(max_size=60))
def test_any_bytes_are_parsed_or_refused(data: bytes) -> None:
    with suppress(HttpRefusal):
        parse_head(data + b"\r\n\r\n")
