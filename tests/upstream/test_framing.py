"""WebSocket frames: read as they were written, whatever the cuts; what RFC 6455 forbids is refused."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode
from websockets.protocol import OPEN
from websockets.server import ServerProtocol

from aep_relay.upstream.framing import CLOSE, PING, PONG, TEXT, Malformed, Reader, written

sizes = st.sampled_from([0, 1, 125, 126, 127, 65_535, 65_536, 70_000])


def server_frame(payload: bytes, opcode: int = TEXT, *, fin: bool = True) -> bytes:
    return Frame(Opcode(opcode), payload, fin=fin).serialize(mask=False)


@given(st.lists(sizes, max_size=5))
def test_what_is_written_another_implementation_reads(lengths: list[int]) -> None:
    payloads = [bytes([65 + n % 26]) * length for n, length in enumerate(lengths)]
    protocol = ServerProtocol(state=OPEN, max_size=None)
    protocol.receive_data(written(payloads))
    frames = protocol.events_received()
    assert [bytes(frame.data) for frame in frames] == payloads  # type: ignore[union-attr]
    assert protocol.parser_exc is None


def test_no_two_masks_are_the_same() -> None:
    data = written([b"x" * 8] * 50)
    masks = {data[at + 2 : at + 6] for at in range(0, len(data), 14)}
    assert len(masks) == 50


@given(
    st.lists(st.tuples(sizes, st.sampled_from([TEXT, PING, PONG]), st.integers(1, 3)), max_size=6),
    st.lists(st.integers(1, 5000), min_size=1, max_size=20),
)
def test_what_is_read_does_not_depend_on_the_cuts(parts: list[tuple[int, int, int]], cuts: list[int]) -> None:
    data, expected = b"", []
    for number, (size, opcode, fragments) in enumerate(parts):
        if opcode != TEXT:
            payload = b"p" * min(size, 125)
            data += server_frame(payload, opcode)
            expected.append((opcode, payload))
            continue
        pieces = [bytes([65 + number]) * size for _ in range(fragments)]
        for index, piece in enumerate(pieces):
            data += server_frame(piece, TEXT if index == 0 else 0, fin=index == fragments - 1)
        expected.append((TEXT, b"".join(pieces)))
    reader, found, at = Reader(1 << 20), [], 0
    while at < len(data):
        for cut in cuts:
            found += reader.feed(data[at : at + cut])
            at += cut
    assert found == expected


def test_a_control_frame_may_come_within_a_message() -> None:
    reader = Reader(100)
    data = server_frame(b"a", fin=False) + server_frame(b"!", PING) + server_frame(b"b", 0)
    assert reader.feed(data) == [(PING, b"!"), (TEXT, b"ab")]


def feed_bytes(reader: Reader, data: bytes) -> None:
    for at in range(len(data)):
        reader.feed(data[at : at + 1])


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"\x81\x80abcd", 1002),
        (b"\x81\xfe\x00\x80abcd", 1002),
        (b"\xc1\x01a", 1002),
        (b"\x83\x01a", 1002),
        (b"\x8b\x00", 1002),
        (b"\x09\x01a", 1002),
        (b"\x89\x7e\x00\x7e" + b"a" * 126, 1002),
        (b"\x80\x01a", 1002),
        (b"\x01\x01a\x81\x01b", 1002),
        (b"\x82\x01a", 1003),
        (b"\x81\x7e\x04\x01", 1009),
        (b"\x81\x7f" + (1 << 40).to_bytes(8, "big"), 1009),
        (b"\x01\x7e\x04\x00" + b"a" * 1024 + b"\x80\x01b", 1009),
    ],
)
def test_what_is_not_allowed(data: bytes, code: int) -> None:
    with pytest.raises(Malformed) as caught:
        Reader(1024).feed(data)
    assert caught.value.code == code
    with pytest.raises(Malformed) as caught:
        feed_bytes(Reader(1024), data)
    assert caught.value.code == code


def test_a_close_frame_is_handed_on() -> None:
    assert Reader(10).feed(server_frame(b"\x03\xe8bye", CLOSE)) == [(CLOSE, b"\x03\xe8bye")]


@given(st.binary(max_size=300))
def test_nothing_but_malformed_is_raised(data: bytes) -> None:
    with suppress(Malformed):
        Reader(200).feed(data)
