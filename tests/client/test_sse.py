"""The stream's reader, however the bytes are cut."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aep_relay.client.errors import Unreachable
from aep_relay.client.sse import Comment, Message, Reader
from aep_relay.protocol import sse
from aep_relay.protocol.event import decode
from tests.protocol.samples import MINIMAL, text

EVENT = decode(text(MINIMAL, session="s:ü"))
STREAM = (
    sse.comment("stream open")
    + sse.message(EVENT, EVENT.raw)
    + sse.PING
    + b"event: a.b\r\ndata: 1\r\ndata:2\r\nretry: 5\r\nunknown\r\n\r\n"
    + b"id: alone\n\n"
    + sse.REPLAY_COMPLETE
)
ITEMS = [
    Comment("stream open"),
    Message("tool.completed", "s:ü:0:3", EVENT.raw),
    Comment("ping"),
    Message("a.b", None, b"1\n2"),
    Comment("replay-complete"),
]


@given(st.lists(st.integers(0, len(STREAM)), max_size=6))
def test_it_does_not_matter_how_the_stream_is_cut(cuts: list[int]) -> None:
    reader = Reader()
    ends = [0, *sorted(cuts), len(STREAM)]
    found = [item for a, b in itertools.pairwise(ends) for item in reader.feed(STREAM[a:b])]
    assert found == ITEMS


@pytest.mark.parametrize("stream", [b"data: " + b"x" * 99, b"data: xxxxxxxxxxxxxxxx\n" * 5])
def test_a_message_without_end_is_refused(stream: bytes) -> None:
    with pytest.raises(Unreachable, match="more than 80 bytes"):
        Reader(80).feed(stream)
    assert Reader(99).feed(b": ping\n\n" * 100) == [Comment("ping")] * 100
