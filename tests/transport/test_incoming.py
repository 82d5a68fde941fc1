from __future__ import annotations

import struct
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.frames import Frame
from websockets.protocol import SERVER, Protocol
from websockets.server import ServerProtocol
from websockets.utils import apply_mask

from aep_relay.transport.incoming import FEED_BYTES, Incoming

MASK = b"\x01\xfe\x7f\x80"
TEXT, BINARY, CONTINUATION, CLOSE, PING = 0x81, 0x82, 0x00, 0x88, 0x89


def frame(
    payload: bytes, first: int = TEXT, *, mask: bytes | None = MASK, length: int | None = None
) -> bytes:
    size = len(payload) if length is None else length
    masked = 0 if mask is None else 0x80
    if size < 126:
        head = struct.pack("!BB", first, masked | size)
    elif size < 65_536:
        head = struct.pack("!BBH", first, masked | 126, size)
    else:
        head = struct.pack("!BBQ", first, masked | 127, size)
    return head + (payload if mask is None else mask + apply_mask(payload, mask))


def core(max_bytes: int = 1000) -> ServerProtocol:
    """The core of a connection whose handshake is over."""
    made = ServerProtocol(max_size=max_bytes)
    Protocol.__init__(made, SERVER, max_size=max_bytes)
    return made


Heard = list[tuple[int, bool, bytes]]


def outcome(made: ServerProtocol) -> tuple[object, ...]:
    """What the core thinks of the connection, and what it would answer."""
    failure = made.parser_exc
    return (
        made.state,
        type(failure),
        str(failure),
        made.close_rcvd,
        made.close_sent,
        made.current_size,
        b"".join(made.data_to_send()),
    )


def by_the_core(chunks: list[bytes]) -> tuple[Heard, tuple[object, ...]]:
    made = core()
    heard: Heard = []
    for chunk in chunks:
        made.receive_data(chunk)
        heard += [(f.opcode, f.fin, bytes(f.data)) for f in made.events_received() if isinstance(f, Frame)]
    return heard, outcome(made)


def by_both(chunks: list[bytes], *, sole: bool = False) -> tuple[Heard, tuple[object, ...]]:
    made = core()
    incoming = Incoming(made)
    heard: Heard = []
    for chunk in chunks:
        alone = incoming.sole(chunk) if sole else None
        for found in incoming.feed(chunk) if alone is None else [[alone]]:
            if isinstance(found, list):
                assert found
                heard += [(1, True, text) for text in found]
            else:
                heard.append((found.opcode, found.fin, bytes(found.data)))
    return heard, outcome(made)


payloads = st.one_of(
    st.binary(max_size=12),
    st.sampled_from([120, 125, 126, 127, 300, 1000, 1001]).map(lambda size: b"\xc3x" * (size // 2)),
)
frames = st.one_of(
    payloads.map(frame),
    payloads.map(frame),
    payloads.map(lambda payload: frame(payload, mask=b"\0\0\0\0")),
    st.builds(frame, payloads, st.sampled_from([TEXT, BINARY, 0x01, 0x80, CONTINUATION, PING, 0x8A])),
    st.builds(frame, st.binary(max_size=9), st.integers(0, 255)),
    st.sampled_from([b"", b"\x03", b"\x03\xe8", b"\x03\xe8bye", b"\0\1"]).map(
        lambda data: frame(data, CLOSE)
    ),
    payloads.map(lambda payload: frame(payload, mask=None)),
    # A length spelled longer than it has to be, and one that does not come.
    st.binary(max_size=9).map(lambda data: struct.pack("!BBH", TEXT, 0xFE, len(data)) + MASK + data),
    st.binary(max_size=9).map(lambda data: struct.pack("!BBQ", TEXT, 0xFF, len(data)) + MASK + data),
    st.sampled_from([999, 1000, 1001, 70_000, 2**63 + 1]).map(lambda length: frame(b"x" * 40, length=length)),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(frames, max_size=12), st.lists(st.integers(0, 3000), max_size=8), st.integers(0, 20))
def test_what_comes_out_is_what_the_core_alone_reads(
    sent: list[bytes], cuts: list[int], cut_off: int
) -> None:
    stream = b"".join(sent)
    stream = stream[: len(stream) - cut_off]
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    chunks = [stream[start:end] for start, end in pairwise(edges)]
    assert by_both(chunks) == by_the_core(chunks)


@settings(max_examples=200, deadline=None)
@given(st.lists(frames, max_size=12), st.lists(st.integers(1, 20), max_size=3))
def test_a_message_that_comes_alone_makes_no_difference(sent: list[bytes], cuts: list[int]) -> None:
    chunks = [chunk for chunk in sent if chunk]
    for cut in cuts:
        if chunks and cut < len(chunks[0]):
            # In two, somewhere among the others.
            chunks[:1] = [chunks[0][:cut], chunks[0][cut:]]
        chunks = chunks[1:] + chunks[:1]
    assert by_both(chunks, sole=True) == by_the_core(chunks)


def test_what_comes_alone() -> None:
    made = core(max_bytes=100)
    incoming = Incoming(made)
    for payload in (b"", b"a", b"\xc3\xa9" * 50):
        assert incoming.sole(frame(payload)) == payload
    for other in (
        b"",
        frame(b"a")[:-1],
        frame(b"a") + b"\x81",
        frame(b"a", mask=None),
        frame(b"a", BINARY),
        frame(b"a", 0x01),
        frame(b"a", 0xC1),
        frame(b"a" * 101),
        frame(b"a" * 126),
        frame(b"a" * 128),
    ):
        assert incoming.sole(other) is None
    begun = frame(frame(b"a"), mask=b"\0\0\0\0")
    assert list(incoming.feed(begun[:6])) == []
    assert incoming.sole(begun[6:]) is None
    (found,) = incoming.feed(begun[6:])
    assert isinstance(found, Frame)
    assert found.data == frame(b"a")
    assert incoming.sole(frame(b"a")) == b"a"
    # In the middle of a message it is for the core to object.
    assert len(list(incoming.feed(frame(b"b", 0x01)))) == 1
    assert incoming.sole(frame(b"a")) is None


ORDINARY = [frame(b"a" * size) for size in (0, 1, 125, 126, 300, 999)]


@pytest.mark.parametrize("step", [1, 2, 3, 7, 64, 127, 5000])
def test_ordinary_texts_in_any_pieces(step: int) -> None:
    stream = b"".join(
        [*ORDINARY, frame(b"?", PING), *ORDINARY, frame(b"b", 0x01), frame(b"c", 0x80), *ORDINARY]
    )
    chunks = [stream[at : at + step] for at in range(0, len(stream), step)]
    heard = by_both(chunks)
    assert heard == by_the_core(chunks)
    assert len(heard[0]) == 3 * len(ORDINARY) + 3


def test_the_core_is_spared_ordinary_texts() -> None:
    made = core()
    found = list(Incoming(made).feed(b"".join(ORDINARY)))
    sizes = [[len(text) for text in texts] for texts in found if isinstance(texts, list)]
    assert sizes == [[0], [1], [125, 126, 300, 999]]
    assert not made.reader.buffer
    assert not made.events


def test_the_core_is_fed_in_slices() -> None:
    """So that whoever handles the frames can let others run in between."""
    incoming = Incoming(core())
    pings = incoming.feed(frame(b"", PING) * 10_000)
    next(pings)
    assert len(incoming._core.data_to_send()) <= FEED_BYTES // 6 + 1


def test_a_limit_that_is_raised_between_two_frames_holds_for_the_second() -> None:
    made = core(max_bytes=10)
    found = Incoming(made).feed(frame(b"hello") + frame(b"x" * 500))
    assert next(found) == [b"hello"]
    made.max_message_size = 1000
    assert next(found) == [b"x" * 500]
