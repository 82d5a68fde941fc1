"""Responses as bytes: whole ones, refusals in JSON, and the heads of those that do not end.

Every response has a Content-Length, or is chunked, or ends with its connection. No header value can break the
framing, whoever it came from.
"""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import TYPE_CHECKING

from aep_relay.protocol.errors import ProtocolError, Refusal, http_body, http_status

if TYPE_CHECKING:
    from collections.abc import Iterable

_STATUS_LINES = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode("ascii") for status in HTTPStatus
}
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+: [\t\x20-\x7e\x80-\xff]*")
_CONTENT_TYPE = re.compile(r"^content-type:", re.IGNORECASE | re.MULTILINE)


def response(
    status: int,
    body: bytes = b"",
    headers: Iterable[tuple[str, str]] = (),
    *,
    keep_alive: bool,
    head_only: bool = False,
) -> bytes:
    """Return a whole response.

    A body is ``application/json`` unless ``headers`` say otherwise. ``head_only`` is for HEAD: the headers
    are those of the answer with its body. Raises ``ValueError`` for a header that would break the framing.
    """
    lines = _header_lines(headers)
    if body and not _CONTENT_TYPE.search(lines):
        lines += "Content-Type: application/json\r\n"
    if status != HTTPStatus.NO_CONTENT:
        lines += f"Content-Length: {len(body)}\r\n"
    lines += "Connection: keep-alive\r\n\r\n" if keep_alive else "Connection: close\r\n\r\n"
    head = _STATUS_LINES[status] + lines.encode("latin-1")
    return head if head_only else head + body


def refusal(
    problem: ProtocolError | Refusal,
    headers: Iterable[tuple[str, str]] = (),
    *,
    keep_alive: bool = False,
    head_only: bool = False,
) -> bytes:
    """Return the whole response that tells a client about ``problem`` in JSON. Raises like ``response``."""
    body = http_body(problem)
    return response(http_status(problem), body, headers, keep_alive=keep_alive, head_only=head_only)


def stream_head(headers: Iterable[tuple[str, str]], *, chunked: bool) -> bytes:
    """Return the head of a 200 response whose end is not known; the connection ends with it.

    ``chunked`` for HTTP/1.1; HTTP/1.0 knows no framing but the end of the connection. Raises like
    ``response``.
    """
    framing = "Transfer-Encoding: chunked\r\n" if chunked else ""
    lines = f"{_header_lines(headers)}{framing}Connection: close\r\n\r\n"
    return _STATUS_LINES[HTTPStatus.OK] + lines.encode("latin-1")


def _header_lines(headers: Iterable[tuple[str, str]]) -> str:
    lines = ""
    for name, value in headers:
        line = f"{name}: {value}"
        if not _HEADER.fullmatch(line):
            raise ValueError("a response header holds what a header can't hold")
        lines += line + "\r\n"
    return lines
