"""Any text gets one verdict: the oracle's, whichever way the package reads it."""

from __future__ import annotations

import json
import string
from collections.abc import Callable
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from aep_relay.protocol import envelope
from aep_relay.protocol.errors import InvalidEvent
from aep_relay.protocol.event import Event, decode
from aep_relay.protocol.registry import CAPTURES, SEVERITIES
from tests.protocol import oracle
from tests.protocol.samples import BASE, MINIMAL, text

TYPES = [
    "session.started",
    "run.step.started",
    "tool.completed",
    "attention.requested",
    "control.accepted",
    "x.a-1.b.c_2",
    "attention.routed",
    "control.cancel",
    "x.acme.control.go",
    "agent.presence",
    "agent.x.y",
]
SCOPED = {"agent": ("session", "seq", "run", "step"), "foreign": ("seq",), "session": ()}

words = st.text(min_size=1, max_size=12)
names = st.text(string.ascii_lowercase + string.digits, min_size=1, max_size=20).filter(
    lambda name: name not in oracle.CORE
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | words,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=4),
    max_leaves=8,
)
optional: dict[str, st.SearchStrategy[object]] = {
    "session": words,
    "subject": words,
    "run": words,
    "step": words,
    "cause": words,
    "seq": st.integers(0, 2**63 - 1),
    "epoch": st.integers(0, 2**63 - 1),
    "severity": st.sampled_from(SEVERITIES),
    "capture": st.sampled_from(CAPTURES),
    "traceparent": st.just(BASE["traceparent"]),
    "data": st.dictionaries(words, json_values, max_size=4),
}


def scope_of(type_: str) -> str:
    if type_.startswith("agent."):
        return "agent"
    return "foreign" if type_ in ("attention.routed", "control.cancel", "x.acme.control.go") else "session"


@st.composite
def members(draw: st.DrawFn) -> dict[str, object]:
    """A valid Event, its members in any order."""
    type_ = draw(st.sampled_from(TYPES))
    found: dict[str, object] = dict(MINIMAL, id=draw(words), agent=draw(words), type=type_)
    found |= draw(st.fixed_dictionaries({}, optional=optional))
    found |= draw(st.dictionaries(names, words | st.integers() | st.booleans(), max_size=3))
    for name in SCOPED[scope_of(type_)]:
        found.pop(name, None)
    return {name: found[name] for name in draw(st.permutations(list(found)))}


def spell_integer(draw: st.DrawFn, value: int) -> str:
    plain = str(value)
    digits = plain.lstrip("-")
    return draw(
        st.sampled_from(
            [plain] * 5
            # No number begins with two digits of which the first is a zero.
            + [plain + ".0", plain + ".000", plain + "e0", plain + "E+0", f"{value * 10}e-1"]
            + [
                plain[: len(plain) - len(digits)]
                + digits[0]
                + "."
                + (digits[1:] or "0")
                + f"e{len(digits) - 1}"
            ]
        )
    )


def spell(draw: st.DrawFn, value: object, escaping: bool) -> str:
    """One of the spellings of a JSON value."""
    if isinstance(value, bool) or value is None or isinstance(value, float):
        return json.dumps(value)
    if isinstance(value, int):
        return spell_integer(draw, value)
    if isinstance(value, str):
        if not escaping:
            return json.dumps(value, ensure_ascii=draw(st.booleans()))
        forced = draw(st.integers(0, 5))
        whole = json.dumps(value, ensure_ascii=False)[1:-1]
        escaped = "".join(
            f"\\u{ord(c):04x}"
            if c.isalnum() and ord(c) < 0x10000 and index % 6 == forced and "\\" not in whole
            else c
            for index, c in enumerate(whole)
        )
        return f'"{escaped}"'
    space = st.sampled_from(["", "", "", " ", "\n", "\r\n", "\t  "])
    if isinstance(value, list):
        inner = [draw(space) + spell(draw, item, escaping) + draw(space) for item in value]
        return f"[{','.join(inner) or draw(space)}]"
    assert isinstance(value, dict)
    inner = [
        draw(space)
        + spell(draw, name, escaping)
        + draw(space)
        + ":"
        + draw(space)
        + spell(draw, item, escaping)
        + draw(space)
        for name, item in value.items()
    ]
    return f"{{{','.join(inner) or draw(space)}}}"


@st.composite
def texts(draw: st.DrawFn) -> bytes:
    """A valid Event in one of its spellings."""
    found = draw(members())
    way = draw(st.integers(0, 3))
    if way == 0:
        return text(found)
    if way == 1:
        return json.dumps(
            found, ensure_ascii=draw(st.booleans()), indent=draw(st.sampled_from([None, 1]))
        ).encode()
    return spell(draw, found, escaping=way == 3).encode()


FRAGMENTS = [
    *(b"null", b"true", b"1", b"-1", b"1.0", b"1e2", b"1e999999999", b"9223372036854775808", b"NaN", b"1.5"),
    *(
        b'""',
        b'"x"',
        b"[]",
        b"{}",
        b'"id":"x"',
        b'"\\u0069d":"x"',
        b',"a":1',
        b',"a":null',
        b',"data":{}',
        b",",
    ),
    *(
        b" ",
        b"\n",
        b"\0",
        b"\x0b",
        b"\xef\xbb\xbf",
        b"\xff",
        b"\xc3\xa9",
        b"\xed\xa0\x80",
        b"\\ud800",
        b"\\ud83d\\ude00",
    ),
    *(b"\\", b"\\\\", b'"', b"{", b"}", b"[" * 250, b"]" * 250, b":", b"a", b".", b"-"),
]
Edit = Callable[[bytes], bytes]


@st.composite
def edits(draw: st.DrawFn) -> Edit:
    """One change to a text: a cut, a fragment put in or over, or a piece written twice."""
    place, length = draw(st.floats(0, 1)), draw(st.integers(0, 12))
    fragment = draw(st.sampled_from(FRAGMENTS))
    kind = draw(st.sampled_from(["cut", "insert", "replace", "double"]))

    def edit(raw: bytes) -> bytes:
        start = round(place * len(raw))
        before, piece, after = raw[:start], raw[start : start + length], raw[start + length :]
        put = {"cut": b"", "insert": fragment + piece, "replace": fragment, "double": piece + piece}
        return before + put[kind] + after

    return edit


MEMBERS = [
    *(
        b'"seq":1.0',
        b'"seq":7',
        b'"epoch":1e2',
        b'"epoch":-0',
        b'"epoch":true',
        b'"session":"s"',
        b'"run":"r"',
    ),
    *(
        b'"session":null',
        b'"subject":""',
        b'"a":1',
        b'"a":"x"',
        b'"a":1.5',
        b'"A":1',
        b'"\\u0061":1',
        b'"data":{}',
    ),
    *(b'"data":[]', b'"data":{"a":1,"a":2}', b'"id":"x"', b'"agent":"x"', b'"type":"tool.completed"'),
    *(
        b'"time":"2026-12-31T23:59:60Z"',
        b'"source":"a:b c"',
        b'"capture":"full"',
        b'"severity":"x"',
        b'"aep":"0.1"',
    ),
]


def with_members(raw: bytes, more: list[bytes]) -> bytes:
    return raw.rstrip()[:-1] + b"".join(b"," + member for member in more) + b"}"


def verdict(raw: bytes) -> Event | None:
    try:
        return decode(raw)
    except InvalidEvent:
        return None


def expected(raw: bytes) -> dict[str, Any] | None:
    try:
        return oracle.judge(raw)
    except oracle.Invalid:
        return None


def attributes(event: Event) -> dict[str, Any]:
    """The Event's attributes as the oracle returns them, defaults in place."""
    found = {name: getattr(event, name) for name in ("id", "type", "time", "source", "agent", "epoch")}
    for name in ("session", "seq", "subject", "run", "step", "cause"):
        if getattr(event, name) is not None:
            found[name] = getattr(event, name)
    found |= {"severity": SEVERITIES[event.severity], "capture": CAPTURES[event.capture]}
    return found | (event.extensions or {})


def agree(raw: bytes) -> None:
    """The package and the oracle say the same of ``raw``, and so do the package's two ways."""
    event, wanted = verdict(raw), expected(raw)
    assert (event is None) == (wanted is None), raw
    if event is not None and wanted is not None:
        wanted = {"epoch": 0, "severity": "info", "capture": "metadata"} | wanted
        wanted.pop("aep")
        wanted.pop("traceparent", None)
        found = attributes(event)
        assert found == wanted
        assert {name: type(value) for name, value in found.items()} == {n: type(v) for n, v in wanted.items()}
        assert event.raw == raw.strip(b" \t\r\n")
    inner = raw.strip(b" \t\r\n")
    try:
        quick = envelope._read_quickly(inner)
    except (ValueError, RecursionError):
        return
    assert quick == envelope._read_exactly(inner)


@given(texts())
def test_valid_events_are_forwarded_byte_for_byte(raw: bytes) -> None:
    assert verdict(raw) is not None
    agree(raw)


@given(texts(), st.lists(st.sampled_from(MEMBERS), min_size=1, max_size=3))
def test_one_verdict_with_members_added(raw: bytes, more: list[bytes]) -> None:
    agree(with_members(raw, more))


@given(texts(), st.lists(edits(), min_size=1, max_size=3))
@example(b'{"a":1,"a":1}', [])
def test_one_verdict_on_damaged_text(raw: bytes, changes: list[Edit]) -> None:
    for edit in changes:
        raw = edit(raw)
    agree(raw)


@given(st.sampled_from(sorted(oracle.STRINGS)), st.text(max_size=60), members())
def test_one_verdict_on_any_string_anywhere(name: str, value: str, found: dict[str, object]) -> None:
    agree(text(found, **{name: value}))


uri_pieces = st.sampled_from(
    ["a", "aep", ":", "/", "//", "@", "[", "]", "?", "#", "%", "%4a", "1", "-", "é", " ", "\\", "+"]
)
time_pieces = st.sampled_from(
    [
        "2026-07-03",
        "2000-02-29",
        "1900-02-29",
        "0000-12-31",
        "T",
        "t",
        " ",
        "23:59:60",
        "10:00:00",
        "24:00:00",
        ".5",
        ".",
        "Z",
        "z",
        "+01:00",
        "-23:59",
        "+24:00",
        "00:59:60",
        "\n",
        "2026-13-01",
        "\uff21",
    ]
)


@given(st.lists(uri_pieces, max_size=10).map("".join))
def test_one_verdict_on_sources(source: str) -> None:
    agree(text(MINIMAL, source="aep:" + source))
    agree(text(MINIMAL, source=source))


@given(st.lists(time_pieces, max_size=5).map("".join))
def test_one_verdict_on_times(time: str) -> None:
    agree(text(MINIMAL, time=time))


@given(
    st.lists(
        st.sampled_from(["x", "tool", "agent", "control", "cancel", ".", "-", "_", "A", "1"]), max_size=9
    )
)
def test_one_verdict_on_types(pieces: list[str]) -> None:
    type_ = "".join(pieces)
    agree(text(MINIMAL, type=type_))
    agree(text(MINIMAL, "seq", type=type_))
    agree(text(MINIMAL, "seq", "session", type=type_))
