"""NDJSON bodies: whole, in slices, refused whole."""

from __future__ import annotations

import json
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aep_relay.protocol.batch import BatchDecoder
from aep_relay.protocol.errors import BatchTooLarge, EventTooLarge, InvalidEvent
from aep_relay.protocol.event import Event
from tests.protocol.samples import BASE, text

MIB = 1 << 20


def lines(*events: bytes) -> bytes:
    return b"\n".join(events)


def decode_batch(body: bytes, max_batch_events: int, max_event_bytes: int) -> list[Event]:
    """The Events of ``body``, decoded to its end."""
    decoder = BatchDecoder(body, max_batch_events, max_event_bytes)
    events: list[Event] = []
    while not decoder.done:
        events += decoder.decode_some(max_batch_events, len(body))
    return events


FIRST, SECOND, THIRD = (text(BASE, id=f"e{number}") for number in range(3))


@pytest.mark.parametrize(
    ("body", "ids"),
    [
        (b"", []),
        (b"\n", []),
        (b" \r\n\t\n\n", []),
        (FIRST, ["e0"]),
        (lines(FIRST, SECOND, THIRD), ["e0", "e1", "e2"]),
        (lines(FIRST, SECOND) + b"\n", ["e0", "e1"]),
        (b"\r\n".join([FIRST, SECOND]) + b"\r\n", ["e0", "e1"]),
        (b"\n\n  " + FIRST + b" \n\r\n \n" + SECOND + b"\n\n", ["e0", "e1"]),
        (lines(FIRST, FIRST), ["e0", "e0"]),
    ],
)
def test_batches(body: bytes, ids: list[str]) -> None:
    events = decode_batch(body, 3, MIB)
    assert [event.id for event in events] == ids
    assert all(event.raw in (FIRST, SECOND, THIRD) for event in events)


@pytest.mark.parametrize(
    ("body", "index"),
    [
        (b"x", 0),
        (lines(FIRST, b"x", b"y"), 1),
        (lines(FIRST, b"", b" ", b"{}", b"x"), 3),
        (b"\r\n" + lines(FIRST, SECOND, b"null"), 3),
        (lines(FIRST + FIRST, SECOND), 0),
        (lines(FIRST, text(BASE, seq=-1)), 1),
        (b"\xef\xbb\xbf" + FIRST, 0),
        (b"\xff\n" + FIRST, 0),
        (lines(FIRST, b"\x0b"), 1),
        (json.dumps(BASE, indent=1).encode(), 0),
    ],
)
def test_the_first_bad_line_is_named(body: bytes, index: int) -> None:
    with pytest.raises(InvalidEvent) as caught:
        decode_batch(body, 1000, MIB)
    assert caught.value.index == index
    assert caught.value.detail.startswith(f"line {index}: ")


def test_a_bad_line_keeps_its_id_and_class() -> None:
    with pytest.raises(InvalidEvent) as caught:
        decode_batch(lines(FIRST, text(BASE, severity="x")), 10, MIB)
    assert caught.value.event_id == BASE["id"]
    with pytest.raises(EventTooLarge) as too_large:
        decode_batch(lines(FIRST, text(BASE, subject="x" * 1000)), 10, 1000)
    assert too_large.value.index == 1


def test_batches_are_bounded() -> None:
    assert len(decode_batch(lines(FIRST, b"", b"", SECOND, b""), 2, MIB)) == 2
    with pytest.raises(BatchTooLarge) as caught:
        decode_batch(lines(FIRST, b"", SECOND, b"not json"), 2, MIB)
    assert caught.value.http_status == 413
    assert decode_batch(b"\n" * 100_000 + FIRST, 1, MIB)[0].id == "e0"


@pytest.mark.parametrize("slice_bytes", [1, 100, 1000, 100_000])
@given(count=st.integers(0, 7), slice_events=st.integers(1, 9), blank=st.sampled_from(["", "\n", " \r\n\t"]))
def test_slices_make_up_the_whole(slice_bytes: int, count: int, slice_events: int, blank: str) -> None:
    body = blank.encode() + lines(*(text(BASE, id=f"e{number}") for number in range(count))) + blank.encode()
    decoder = BatchDecoder(body, count, MIB)
    slices = []
    while not decoder.done:
        slices.append([event.id for event in decoder.decode_some(slice_events, slice_bytes)])
    assert list(chain(*slices)) == [f"e{number}" for number in range(count)]
    assert all(len(chunk) <= slice_events for chunk in slices)
    if slice_bytes == 1:
        assert all(len(chunk) <= 1 for chunk in slices)
    elif slice_bytes == 100_000:
        assert all(len(chunk) == slice_events for chunk in slices[:-1])


def test_a_slice_of_blank_lines_is_a_slice() -> None:
    decoder = BatchDecoder(b"\n" * MIB, 10, MIB)
    assert decoder.decode_some(10, 1000) == []
    assert not decoder.done
