"""The chunked framing: strict, bounded, and indifferent to how its bytes were cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aep_relay.transport.chunked import (
    MAX_LINE_BYTES,
    MAX_OVERHEAD_BYTES,
    MAX_TRAILER_BYTES,
    ChunkedDecoder,
    ChunkedError,
    ChunkedOverflow,
)
from tests.transport.conversation import bytewise, cuts

LIMIT_BYTES = 1000


def decode(
    chunks: list[bytes], limit_bytes: int = LIMIT_BYTES
) -> tuple[bytes, bytes] | type[Exception] | None:
    """Body and what follows it, the error, or None while it is not complete."""
    decoder = ChunkedDecoder(limit_bytes)
    rest = b""
    try:
        for chunk in chunks:
            rest = rest + chunk if decoder.done else decoder.feed(chunk)
    except (ChunkedError, ChunkedOverflow) as error:
        return type(error)
    return (bytes(decoder.body), rest) if decoder.done else None


GOOD = {
    "empty": (b"0\r\n\r\n", b""),
    "one chunk": (b"5\r\nhello\r\n0\r\n\r\n", b"hello"),
    "several": (b"1\r\na\r\n2\r\nbc\r\n00\r\n\r\n", b"abc"),
    "hexadecimal": (b"A\r\n0123456789\r\nb\r\n0123456789a\r\n0\r\n\r\n", b"01234567890123456789a"),
    "leading zeros": (b"0005\r\nhello\r\n0\r\n\r\n", b"hello"),
    "line breaks in the data": (b"4\r\n\r\n\r\n\r\n0\r\n\r\n", b"\r\n\r\n"),
    "extensions": (b'5;a=b;c="d e" \r\nhello\r\n0;x\r\n\r\n', b"hello"),
    "a trailer": (b"0\r\nX: y\r\nX-Content-Length: 7\r\n\r\n", b""),
    "the limit": (b"3e8\r\n" + bytes(1000) + b"\r\n0\r\n\r\n", bytes(1000)),
}

BAD = {
    "no size": b"\r\nhello\r\n0\r\n\r\n",
    "a sign": b"+5\r\nhello\r\n0\r\n\r\n",
    "a minus": b"-5\r\nhello\r\n0\r\n\r\n",
    "a prefix": b"0x5\r\nhello\r\n0\r\n\r\n",
    "no digit": b"g\r\nhello\r\n0\r\n\r\n",
    "a space behind the size": b"5 \r\nhello\r\n0\r\n\r\n",
    "a space before the size": b" 5\r\nhello\r\n0\r\n\r\n",
    "a space before an extension": b"5 ;a\r\nhello\r\n0\r\n\r\n",
    "an underscore": b"1_0\r\nhello\r\n0\r\n\r\n",
    "a size beyond 64 bits": b"10000000000000005\r\nhello\r\n0\r\n\r\n",
    "a bare LF after the size": b"5\nhello\r\n0\r\n\r\n",
    "a bare LF after the data": b"5\r\nhello\n0\r\n\r\n",
    "a bare CR after the size": b"5\rhello\r\n0\r\n\r\n",
    "data too long": b"5\r\nhello!\r\n0\r\n\r\n",
    "data too short": b"5\r\nhell\r\n0\r\n\r\n",
    "a control character in an extension": b"5;\x01\r\nhello\r\n0\r\n\r\n",
    "a LF in an extension": b"5;a\nb\r\nhello\r\n0\r\n\r\n",
    "an endless extension": b"5;" + b"a" * MAX_LINE_BYTES + b"\r\nhello\r\n0\r\n\r\n",
    "a trailer without a colon": b"0\r\nX\r\n\r\n",
    "a length in the trailer": b"0\r\nContent-Length: 5\r\n\r\n",
    "a coding in the trailer": b"0\r\nX: y\r\ntransfer-encoding: chunked\r\n\r\n",
    "a host in the trailer": b"0\r\nHOST:a\r\n\r\n",
    "a folded trailer": b"0\r\nX: a\r\n b\r\n\r\n",
    "a trailer with a NUL": b"0\r\nX: \0\r\n\r\n",
    "a bare LF in the trailer": b"0\r\nX: a\n\r\n\r\n",
    "an endless trailer": b"0\r\n" + b"X: a\r\n" * (MAX_TRAILER_BYTES // 6 + 1) + b"\r\n",
}


@pytest.mark.parametrize(("data", "expected"), GOOD.values(), ids=GOOD)
def test_good(data: bytes, expected: bytes) -> None:
    assert decode([data]) == (expected, b"")
    assert decode(bytewise(data)) == (expected, b"")
    assert decode([data + b"GET / HTTP/1.1"]) == (expected, b"GET / HTTP/1.1")


@pytest.mark.parametrize("data", BAD.values(), ids=BAD)
def test_bad(data: bytes) -> None:
    assert decode([data]) is ChunkedError
    assert decode(bytewise(data)) is ChunkedError
    assert decode([data + b"more"]) is ChunkedError


@pytest.mark.parametrize("data", [data for data, _ in GOOD.values()], ids=GOOD)
def test_no_prefix_is_complete(data: bytes) -> None:
    for end in range(len(data)):
        assert decode([data[:end]]) is None


def test_more_than_the_limit_is_known_before_it_comes() -> None:
    assert decode([b"3e9\r\n"]) is ChunkedOverflow
    assert decode([b"3e8\r\n" + bytes(1000) + b"\r\n1\r\n"]) is ChunkedOverflow
    assert decode([b"fffffffffffffff\r\n"]) is ChunkedOverflow


def test_a_byte_a_chunk_is_allowed() -> None:
    assert decode([b"1\r\nx\r\n" * 5000 + b"0\r\n\r\n"], 5000) == (b"x" * 5000, b"")


def test_long_extensions_on_tiny_chunks_are_not() -> None:
    chunk = b"1;" + b"a" * 200 + b"\r\nx\r\n"
    few = MAX_OVERHEAD_BYTES // 200 // 2
    assert decode([chunk * few + b"0\r\n\r\n"]) == (b"x" * few, b"")
    assert decode([chunk * few * 3]) is ChunkedError


def test_what_waits_for_a_line_is_bounded() -> None:
    decoder = ChunkedDecoder(LIMIT_BYTES)
    for _ in range(10):
        decoder.feed(b"1" * 100)
        assert len(decoder._pending) <= MAX_LINE_BYTES + 1
    with pytest.raises(ChunkedError):
        decoder.feed(b"1" * 100)


PIECES = st.sampled_from(
    [
        b"5\r\nhello\r\n",
        b"0\r\n",
        b"\r\n",
        b"\n",
        b"\r",
        b"1\r\nx\r\n",
        b";ext",
        b"X: y\r\n",
        b"3e9\r\n",
        b"f",
        b" ",
        b"\0",
    ]
)


@given(st.lists(PIECES, max_size=12).map(b"".join), st.lists(st.integers(0, 80), max_size=8))
def test_the_verdict_does_not_depend_on_the_cuts(data: bytes, at: list[int]) -> None:
    whole = decode([data])
    assert decode(cuts(data, at)) == whole
    assert decode(bytewise(data)) == whole


@given(st.lists(st.binary(min_size=1, max_size=50), max_size=8), st.binary(max_size=20))
def test_what_was_chunked_comes_out(parts: list[bytes], after: bytes) -> None:
    data = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
    assert decode([data + after]) == (b"".join(parts), after)
    assert decode(bytewise(data + after)) == (b"".join(parts), after)
