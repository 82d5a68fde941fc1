from __future__ import annotations

import pytest

from aep_relay.protocol.event import decode
from aep_relay.protocol.framing import Framing, encode, encode_each
from tests.protocol.samples import BASE, text


@pytest.mark.parametrize("framing", Framing)
def test_many_are_framed_as_each_would_be(framing: Framing) -> None:
    events = [
        decode(text(BASE)),
        decode(text(BASE, seq=7, session="a\nb")),
        decode(text(BASE).replace(b",", b",\r\n")),
        decode(text(BASE, data={"x": "y" * 70_000})),
    ]
    raws = [event.raw for event in events]
    assert encode_each(framing, events, raws) == [encode(framing, event, event.raw) for event in events]
    assert encode_each(framing, [], []) == []
