"""The head of an HTTP/1.x request: its grammar, its fields, and what is refused.

``parse_head`` takes one whole head. The grammar that RFC 9112 prescribes is checked by one regular expression
first, then ``httptools`` takes the head apart, then the fields that decide where the body ends and whom the
request is for are judged. Every step is stricter than it has to be for a well-meaning client: where two
readers could see two different requests, nothing is served and the connection ends.

Refused, beyond what the grammar excludes (bare CR or LF, folded lines, NUL and other control characters,
white space before a colon): Content-Length beside Transfer-Encoding, more than one of either, any coding but
``chunked``, a body framed by Transfer-Encoding in HTTP/1.0, a Host that is missing (HTTP/1.1), repeated or
malformed, a fragment or user information in the target, and a body on an upgrade to WebSocket.
"""

from __future__ import annotations

import re
from typing import NoReturn

import httptools

from aep_relay.protocol.errors import ProtocolError

MAX_HEADER_FIELDS = 200
MAX_QUERY_PARAMETERS = 200
MAX_STRAY_PERCENT_SIGNS = 1_000
"""In a target; each costs as much as hundreds of other bytes."""
MAX_CONTENT_LENGTH_DIGITS = 18

_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_HEAD = re.compile(
    rb"(" + _TOKEN + rb") ([\x21\x22\x24-\x7e]+) HTTP/1\.([01])\r\n"
    rb"(?:" + _TOKEN + rb":[\t\x20-\x7e\x80-\xff]*\r\n)*\r\n"
)
_REQUEST_LINE = re.compile(rb"(" + _TOKEN + rb") +([^ ]+) +HTTP/(\d+\.\d+)", re.DOTALL)
_NEVER_IN_A_HEAD = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|(?<!\r)\n|\r(?!\n|\Z)")
_TOKEN_START = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z\r-]")
_ABSOLUTE = re.compile(rb"https?://([^/?]*)(.*)", re.IGNORECASE)
_STRAY_PERCENT_SIGN = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_ORIGIN = re.compile(rb"\r\norigin:([^\r\n]*)(?=\r\n)", re.IGNORECASE)
_AUTHORITY = re.compile(rb"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~!$&'()*+,;=%-]*)(?::[0-9]{0,5})?")


class HttpRefusal(ProtocolError):
    """A request that is not served, and after which the connection ends. ``detail`` holds nothing that was
    sent.
    """

    def __init__(self, http_status: int, code: str, detail: str) -> None:
        super().__init__(detail)
        self.http_status = http_status
        self.code = code
        self.head = b""
        """As much as was received of the head, where it is the head that is refused."""

    @property
    def origin(self) -> bytes | None:
        """The Origin that stands in ``head``, once, as far as can be told: a page can read no answer without it."""
        found = _ORIGIN.findall(self.head)
        return found[0].strip(b" \t") if len(found) == 1 else None


class Request:
    """One request's head, and how its body is framed."""

    __slots__ = (
        "_first",
        "chunked",
        "content_length",
        "expect_continue",
        "headers",
        "host",
        "http_version",
        "keep_alive",
        "method",
        "path",
        "query",
        "raw_head",
        "target",
        "upgrade_websocket",
    )

    def __init__(self, raw_head: bytes, method: str, target: bytes, http_version: str) -> None:
        self.raw_head = raw_head
        """The head as received, its empty line included."""
        self.method = method
        self.target = target
        """As received, which may be the absolute form."""
        self.http_version = http_version
        """``"1.0"`` or ``"1.1"``."""
        self.path = ""
        """Decoded. Starts with a slash; may hold any character, ``..`` too. ``*`` only for ``OPTIONS``."""
        self.query: dict[str, list[str]] = {}
        """Decoded parameters by name, each with all its values in order."""
        self.headers: list[tuple[bytes, bytes]] = []
        """In order; names in lower case, values without outer white space."""
        self._first: dict[bytes, bytes] = {}
        self.host = ""
        """``name:port`` as the client knows this server, from the target if that has one, else from Host."""
        self.content_length: int | None = None
        self.chunked = False
        self.keep_alive = False
        """What the client asks for; the reader's ``keep_alive`` knows whether it is possible."""
        self.expect_continue = False
        self.upgrade_websocket = False

    def get(self, name: bytes) -> bytes | None:
        """Return the first value of the header field ``name`` (lower case), None if there is none."""
        return self._first.get(name)

    def get_all(self, name: bytes) -> list[bytes]:
        """Return all values of the header field ``name`` (lower case), in order."""
        return [value for known, value in self.headers if known == name]

    def tokens(self, name: bytes) -> set[bytes]:
        """Return the members of a comma-separated field, over all its lines, in lower case."""
        if name not in self._first:
            return set()
        return {part.strip(b" \t") for part in b",".join(self.get_all(name)).lower().split(b",")}


class _Fields:
    """What ``httptools`` calls back while it takes a head apart."""

    __slots__ = ("headers",)

    def __init__(self) -> None:
        self.headers: list[tuple[bytes, bytes]] = []

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value.strip()))


def check_partial_head(partial: bytes | bytearray, start: int) -> None:
    """Refuse a head of which only a part is here, if it can't become a good one any more.

    ``partial[:start]`` was checked before. Raises ``HttpRefusal``.
    """
    if partial and not _TOKEN_START.match(partial):
        raise _bad("the request line is malformed")
    if _NEVER_IN_A_HEAD.search(partial, max(0, start - 1)):
        raise _bad(_CONTROL_DETAIL)


def parse_head(head: bytes) -> Request:
    """Return the request whose head is ``head``, which ends with its empty line.

    Raises ``HttpRefusal`` with 400, 417 (an expectation other than ``100-continue``), 431 (too many fields),
    501 (a method or coding this server does not know) or 505.
    """
    match = _HEAD.fullmatch(head)
    if match is None:
        _refuse_head(head)
    method, target, minor = match.groups()
    request = Request(head, method.decode("ascii"), target, "1.1" if minor == b"1" else "1.0")
    request.headers = headers = _take_apart(head)
    if len(headers) > MAX_HEADER_FIELDS:
        raise HttpRefusal(431, "limit-exceeded", f"more than {MAX_HEADER_FIELDS} header fields")
    request._first = first = dict(reversed(headers))
    if len(first) != len(headers):
        _check_repeated(headers)
    _set_host(request, first.get(b"host"))
    _set_target(request)
    _set_framing(request, first)
    _set_connection(request, first)
    return request


_CONTROL_DETAIL = "the head holds a control character, or a line that does not end with CR LF"


def _bad(detail: str) -> HttpRefusal:
    return HttpRefusal(400, "bad-request", detail)


def _refuse_head(head: bytes) -> NoReturn:
    """Say what is wrong with a head that does not follow the grammar."""
    check_partial_head(head, 0)
    line, _, fields = head.partition(b"\r\n")
    match = _REQUEST_LINE.fullmatch(line)
    if match is None:
        raise _bad("the request line is malformed")
    if match[3] not in (b"1.0", b"1.1"):
        raise HttpRefusal(505, "http-version-unsupported", "only HTTP/1.0 and HTTP/1.1 are spoken here")
    if any(byte > 0x7E or byte == 0x23 for byte in match[2]):
        raise _bad("the request target has to be percent-encoded, and has no fragment")
    if fields.startswith((b" ", b"\t")) or b"\n " in fields or b"\n\t" in fields:
        raise _bad("folded header lines are not accepted")
    raise _bad("a header field or the request line is malformed")


def _take_apart(head: bytes) -> list[tuple[bytes, bytes]]:
    fields = _Fields()
    try:
        httptools.HttpRequestParser(fields).feed_data(head)
    except httptools.HttpParserUpgrade:
        # A head that asks for an upgrade ends the parser's work, and the head's end is all it was given.
        pass
    except httptools.HttpParserInvalidMethodError:
        raise HttpRefusal(501, "not-implemented", "the request method is not known here") from None
    except httptools.HttpParserInvalidURLError:
        raise _bad("the request target is malformed") from None
    except httptools.HttpParserError as error:
        # The parser's own text: one of a fixed set.
        raise _bad(str(error)) from None
    return fields.headers


def _check_repeated(headers: list[tuple[bytes, bytes]]) -> None:
    names = [name for name, _ in headers]
    for name in (b"content-length", b"transfer-encoding", b"host"):
        if names.count(name) > 1:
            raise _bad(f"more than one {name.decode().title()}")


def _set_host(request: Request, host: bytes | None) -> None:
    if host is None:
        if request.http_version == "1.1":
            raise _bad("Host is missing")
        return
    if not _AUTHORITY.fullmatch(host):
        raise _bad("Host is malformed")
    request.host = host.decode("ascii")


def _set_target(request: Request) -> None:
    """Find path and query (RFC 9112 §3.2). In the absolute form, the target's authority replaces Host."""
    target = request.target
    if request.method == "CONNECT":
        raise HttpRefusal(501, "not-implemented", "this is no proxy")
    if not target.startswith(b"/"):
        absolute = _ABSOLUTE.fullmatch(target)
        if absolute is not None:
            authority, target = absolute.groups()
            if not authority or not _AUTHORITY.fullmatch(authority):
                raise _bad("the request target's authority is malformed")
            request.host = authority.decode("ascii")
            if not target.startswith(b"/"):
                target = b"/" + target
        elif target != b"*" or request.method != "OPTIONS":
            raise _bad("the request target is malformed")
    if b"%" in target:
        target = _without_strays(target)
    path, _, query = target.partition(b"?")
    request.path = _decoded(path)
    if query:
        request.query = _parse_query(query)


def _without_strays(target: bytes) -> bytes:
    """Escape the percent signs that begin no escape: each stands for itself, as in every browser."""
    target, strays = _STRAY_PERCENT_SIGN.subn(b"%25", target, MAX_STRAY_PERCENT_SIGNS + 1)
    if strays > MAX_STRAY_PERCENT_SIGNS:
        raise _bad(f"more than {MAX_STRAY_PERCENT_SIGNS} percent signs that begin no escape")
    return target


def _parse_query(query: bytes) -> dict[str, list[str]]:
    pairs = query.split(b"&")
    if len(pairs) > MAX_QUERY_PARAMETERS:
        raise _bad(f"more than {MAX_QUERY_PARAMETERS} query parameters")
    parameters: dict[str, list[str]] = {}
    for pair in pairs:
        if pair:
            name, _, value = pair.replace(b"+", b" ").partition(b"=")
            parameters.setdefault(_decoded(name), []).append(_decoded(value))
    return parameters


def _decoded(text: bytes) -> str:
    """Undo percent-encoding; every percent sign in ``text`` begins an escape."""
    if b"%" in text:
        # In one step, whatever there is of them: ``urllib.parse`` takes a step for each.
        text = text.replace(b"\\", b"\\\\").replace(b"%", b"\\x").decode("unicode_escape").encode("latin-1")
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError:
        raise _bad("the request target is not UTF-8") from None


def _set_framing(request: Request, first: dict[bytes, bytes]) -> None:
    """Find where the body ends (RFC 9112 §6)."""
    coding = first.get(b"transfer-encoding")
    length = first.get(b"content-length")
    if coding is not None:
        if length is not None:
            raise _bad("Content-Length beside Transfer-Encoding")
        if request.http_version == "1.0":
            raise _bad("Transfer-Encoding in HTTP/1.0")
        if coding.lower() != b"chunked":
            raise HttpRefusal(501, "not-implemented", "the only transfer coding known here is chunked")
        request.chunked = True
    elif length is not None:
        if not length.isdigit() or len(length) > MAX_CONTENT_LENGTH_DIGITS:
            raise _bad("Content-Length is malformed")
        request.content_length = int(length)


def _set_connection(request: Request, first: dict[bytes, bytes]) -> None:
    modern = request.http_version == "1.1"
    request.keep_alive = modern
    if b"connection" in first:
        tokens = request.tokens(b"connection")
        request.keep_alive = b"close" not in tokens and (modern or b"keep-alive" in tokens)
        if modern and b"upgrade" in tokens and b"websocket" in request.tokens(b"upgrade"):
            if request.content_length or request.chunked:
                raise _bad("a request to upgrade to WebSocket has no body")
            request.upgrade_websocket = request.method == "GET"
    if modern and b"expect" in first:
        if request.tokens(b"expect") != {b"100-continue"}:
            raise HttpRefusal(417, "expectation-failed", "the only expectation known here is 100-continue")
        request.expect_continue = True
