"""Resume points in their three spellings, and event ids."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aep_relay.protocol.errors import InvalidFilter, InvalidParameter
from aep_relay.protocol.position import (
    MAX_EVENT_ID_SESSION_BYTES,
    MAX_FROM_CHARS,
    MAX_POSITION,
    ResumePoint,
    event_id,
    parse_from,
    parse_from_json,
    parse_last_event_id,
)

counts = st.integers(0, MAX_POSITION)
sessions = st.text(min_size=1)


@pytest.mark.parametrize(
    ("value", "points"),
    [
        ([], []),
        ([{"session": "s", "seq": 3}], [ResumePoint("s", (0, 3))]),
        ([{"session": "s", "epoch": 1751537640123, "seq": 0}], [ResumePoint("s", (1751537640123, 0))]),
        ([{"session": "s", "epoch": 1.0, "seq": 100.0}], [ResumePoint("s", (1, 100))]),
        ([{"session": "s", "seq": MAX_POSITION}], [ResumePoint("s", (0, MAX_POSITION))]),
        ([{"session": "s", "seq": 1, "note": {"x": 1}}], [ResumePoint("s", (0, 1))]),
        (
            [{"session": "s", "seq": 1}, {"session": "s", "seq": 2}],
            [ResumePoint("s", (0, 1)), ResumePoint("s", (0, 2))],
        ),
    ],
)
def test_positions(value: object, points: list[ResumePoint]) -> None:
    assert parse_from(value) == points


def test_all() -> None:
    assert parse_from("all") == "all"
    assert parse_from_json("all") == "all"
    assert parse_from_json('"all"') == "all"


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        1,
        "ALL",
        "",
        {},
        {"session": "s", "seq": 1},
        [None],
        [[]],
        ["all"],
        [{}],
        [{"session": "s"}],
        [{"seq": 1}],
        [{"session": "", "seq": 1}],
        [{"session": 1, "seq": 1}],
        [{"session": "s", "seq": None}],
        [{"session": "s", "seq": True}],
        [{"session": "s", "seq": "1"}],
        [{"session": "s", "seq": -1}],
        [{"session": "s", "seq": 1.5}],
        [{"session": "s", "seq": MAX_POSITION + 1}],
        [{"session": "s", "seq": 2.0**60}],
        [{"session": "s", "seq": float("nan")}],
        [{"session": "s", "seq": 1, "epoch": None}],
        [{"session": "s", "seq": 1, "epoch": False}],
        [{"session": "s", "seq": 1, "epoch": -1}],
        [{"session": "s", "seq": 1}, 0],
    ],
)
def test_malformed_positions(value: object) -> None:
    with pytest.raises(InvalidFilter) as caught:
        parse_from(value)
    assert caught.value.code == "invalid-filter"


def test_the_faulty_item_is_named() -> None:
    with pytest.raises(InvalidFilter, match="seq of item 1"):
        parse_from([{"session": "s", "seq": 1}, {"session": "s"}])


@pytest.mark.parametrize(
    ("text", "point"),
    [
        ('[{"session":"s","seq":1.0,"epoch":1e2}]', ResumePoint("s", (100, 1))),
        ('[{"session":"s","seq":9007199254740993.0}]', ResumePoint("s", (0, 2**53 + 1))),
        ('[{"session":"s","seq":9223372036854775807}]', ResumePoint("s", (0, MAX_POSITION))),
    ],
)
def test_the_parameter_keeps_integers_exact(text: str, point: ResumePoint) -> None:
    assert parse_from_json(text) == [point]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "All",
        "null",
        "{}",
        "[",
        '[{"session":"s","seq":9223372036854775808}]',
        '[{"session":"s","seq":1e999999999}]',
        '[{"session":"s","seq":1,"seq":1}]',
        '[{"session":"\\ud800","seq":1}]',
        "[" * 100_000,
        " " * (MAX_FROM_CHARS + 1),
    ],
)
def test_malformed_parameters_are_named(text: str) -> None:
    with pytest.raises(InvalidParameter, match=r"^from: (?!from)") as caught:
        parse_from_json(text)
    assert caught.value.parameter == "from"


def test_a_position_in_place_of_positions_is_told_what_is_wanted() -> None:
    with pytest.raises(InvalidParameter, match='neither an array of positions nor "all": not JSON'):
        parse_from_json("s-1:0:1")


@pytest.mark.parametrize(
    ("raw", "point"),
    [
        ("s:0:1", ResumePoint("s", (0, 1))),
        (b"s:3:187", ResumePoint("s", (3, 187))),
        ("a:b:c:3:187", ResumePoint("a:b:c", (3, 187))),
        ("::0:1", ResumePoint(":", (0, 1))),
        ("sitzung é".encode() + b":1:2", ResumePoint("sitzung é", (1, 2))),
        (f"s:{MAX_POSITION}:{MAX_POSITION}", ResumePoint("s", (MAX_POSITION, MAX_POSITION))),
    ],
)
def test_last_event_ids_are_read_from_the_right(raw: bytes | str, point: ResumePoint) -> None:
    assert parse_last_event_id(raw) == point


@pytest.mark.parametrize(
    "raw",
    [
        "",
        "s",
        "s:1",
        ":0:1",
        "s:0:",
        "s::1",
        "s:a:1",
        "s:0:-1",
        "s:0:1.0",
        "s:0:+1",
        "s:0: 1",
        "s:0:\u0661",
        f"s:0:{MAX_POSITION + 1}",
        f"s:{MAX_POSITION + 1}:0",
        "s:0:" + "9" * 5000,
        b"\xff:0:1",
    ],
)
def test_malformed_last_event_ids(raw: bytes | str) -> None:
    with pytest.raises(InvalidParameter) as caught:
        parse_last_event_id(raw)
    assert caught.value.parameter == "Last-Event-ID"


CONTROLS = {chr(number) for number in [*range(32), 127]} - {"\t"}


@pytest.mark.parametrize(
    ("session", "has_id"),
    [
        *((f"a{control}b", False) for control in sorted(CONTROLS)),
        (" a", False),
        ("\ta", False),
        ("a \tb ", True),
        ("\x85\u2028\xa0", True),
        ("é" * (MAX_EVENT_ID_SESSION_BYTES // 2), True),
        ("é" * (MAX_EVENT_ID_SESSION_BYTES // 2) + "e", False),
    ],
)
def test_an_event_id_can_be_sent_back_in_a_header(session: str, has_id: bool) -> None:
    assert (event_id(session, (0, 1)) is not None) is has_id


@given(sessions, counts, counts)
def test_event_ids_come_back(session: str, epoch: int, seq: int) -> None:
    text = event_id(session, (epoch, seq))
    if set(session) & CONTROLS or session[0] in " \t":
        assert text is None
    else:
        assert text is not None
        assert parse_last_event_id(text) == ResumePoint(session, (epoch, seq))
        assert parse_last_event_id(text.encode()) == ResumePoint(session, (epoch, seq))


@given(st.lists(st.tuples(sessions, counts, counts), max_size=5))
def test_resume_points_come_back(triples: list[tuple[str, int, int]]) -> None:
    text = json.dumps([{"session": s, "epoch": e, "seq": n} for s, e, n in triples])
    assert parse_from_json(text) == [ResumePoint(s, (e, n)) for s, e, n in triples]
