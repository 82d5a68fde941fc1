"""Events decoded together: the same Events as one by one, or none."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import astuple

from aep_relay.protocol.errors import InvalidEvent
from aep_relay.protocol.event import MAX_TOGETHER_BYTES, Event, decode, decode_together
from tests.protocol.samples import BASE, MINIMAL, spelled, text
from tests.protocol.test_event_oracle import MEMBERS, Edit, edits, texts, with_members

MIB = 1 << 20
PLAIN = text(BASE)


def together(texts: list[bytes], max_event_bytes: int = MIB) -> list[Event] | None:
    return decode_together(texts, b"\n".join(texts), max_event_bytes)


def one_by_one(texts: list[bytes]) -> list[Event] | None:
    try:
        return [decode(raw, MIB) for raw in texts]
    except InvalidEvent:
        return None


def agree(texts: list[bytes]) -> None:
    found = together(texts)
    if found is not None:
        wanted = one_by_one(texts)
        assert wanted is not None, texts
        assert [astuple(event) for event in found] == [astuple(event) for event in wanted]


damaged = st.builds(lambda raw, edit: edit(raw), texts(), edits())
extended = st.builds(with_members, texts(), st.lists(st.sampled_from(MEMBERS), min_size=1, max_size=2))


@given(st.lists(texts() | damaged | extended, min_size=1, max_size=4))
def test_what_is_decoded_together_is_what_each_is(several: list[bytes]) -> None:
    agree(several)


@given(st.lists(texts(), min_size=1, max_size=3), st.lists(edits(), max_size=2))
@example([PLAIN, PLAIN], [])
def test_however_lines_are_cut(several: list[bytes], changes: list[Edit]) -> None:
    joined = b"\n".join(several)
    for edit in changes:
        joined = edit(joined)
    agree(joined.split(b"\n"))
    agree(joined.split(b"\n", 1))


@given(
    st.lists(st.sampled_from([b"{", b"}", b"\n", b" ", PLAIN, PLAIN[:-1], b'{"aep":', PLAIN[1:]]), max_size=9)
)
def test_two_on_a_line_are_not_one(pieces: list[bytes]) -> None:
    agree(b"".join(pieces).split(b"\n"))


@pytest.mark.parametrize(
    "several",
    [
        [PLAIN],
        [PLAIN] * 3,
        [PLAIN, text(MINIMAL), text(MINIMAL, data={})],
        [json.dumps(BASE).encode(), json.dumps(MINIMAL).encode()],
        [PLAIN, text(BASE, zzz="x", a1=7), PLAIN],
        [json.dumps(BASE | {"zzz": True}).encode(), PLAIN],
        [text(BASE, subject="Füße"), PLAIN],
        [text(BASE, subject='a"b\n'), text(BASE, data={"text": 'a"b\\c\n\u2028'})],
        [text(BASE, time="2026-12-31T23:59:60Z"), PLAIN],
        [text(BASE, data={"text": "x" * 5000}), PLAIN],
        [text(MINIMAL, "session", "seq", type="agent.presence"), text(MINIMAL, "seq", type="control.cancel")],
    ],
)
def test_ordinary_events_are_decoded_together(several: list[bytes]) -> None:
    found = together(several)
    assert found is not None
    assert [event.raw for event in found] == several
    agree(several)


@pytest.mark.parametrize(
    "several",
    [
        [b""],
        [b"{}"],
        [PLAIN, b""],
        [PLAIN, PLAIN[:-1]],
        [PLAIN + PLAIN, b'{"a":', b"1}"],
        [PLAIN + b" ", PLAIN],
        [PLAIN + b"\n" + PLAIN],
        [PLAIN + PLAIN[:-1] + b",", b'"a":1}'],
        [PLAIN, text(BASE, data=[])],
        [PLAIN, text(BASE, data="{}}")],
        [PLAIN, text(BASE, time="2026-07-03T10:15:04Z\n2026-07-03T10:15:04Z")],
        [PLAIN, text(BASE, A=1)],
        [spelled('"subject":"\\u0041\\ud83d\\ude00"'), PLAIN],
        [PLAIN, spelled('"seq":9')],
        [PLAIN, spelled('"subject":null')],
        [PLAIN, text(BASE, type="tool")],
        [PLAIN, text(BASE, source="x")],
        [PLAIN, text(BASE, "session")],
        [PLAIN, text(BASE, traceparent="x")],
        [PLAIN, text(BASE, subject="x")[:-1] + b"\xff}"],
        [PLAIN, text(BASE, data={"a": "x" * MAX_TOGETHER_BYTES})],
        [PLAIN, spelled('"data":' + '{"a":' * 300 + "1" + "}" * 300)],
    ],
)
def test_what_has_to_be_looked_at_by_itself_is_not(several: list[bytes]) -> None:
    assert together(several) is None


def test_one_that_is_too_long_has_to_be_refused_by_itself() -> None:
    assert together([PLAIN, PLAIN], len(PLAIN)) is not None
    assert together([PLAIN, PLAIN], len(PLAIN) - 1) is None
