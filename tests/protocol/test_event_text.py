"""The envelope as JSON text: integers, doubled members, Unicode, nesting, whatever the spelling."""

from __future__ import annotations

import json

import pytest

from aep_relay.protocol import envelope
from aep_relay.protocol.event import Event, decode
from aep_relay.protocol.jsontext import MAX_NESTING_LEVELS
from tests.protocol.samples import BASE, MINIMAL, refusal, spelled, text


@pytest.mark.parametrize("space", ["", " ", "\n", "\r\n\t ", " " * 1000])
def test_raw_is_what_was_received_without_outer_whitespace(space: str) -> None:
    inner = json.dumps(BASE, indent=1).encode()
    assert decode(space.encode() + inner + space.encode()).raw == inner


@pytest.mark.parametrize(
    ("spelling", "value"),
    [
        ("0", 0),
        ("-0", 0),
        ("-0.0", 0),
        ("1", 1),
        ("1.0", 1),
        ("1e2", 100),
        ("10e-1", 1),
        ("9007199254740993", 2**53 + 1),
        ("9007199254740993.0", 2**53 + 1),
        ("9223372036854775807", 2**63 - 1),
        ("9223372036854775807.000", 2**63 - 1),
        ("1751537640123456", 1751537640123456),
    ],
)
@pytest.mark.parametrize("name", ["seq", "epoch"])
def test_integers(name: str, spelling: str, value: int) -> None:
    raw = text(BASE, name)[:-1] + f',"{name}":{spelling}}}'.encode()
    event = decode(raw)
    assert getattr(event, name) == value
    assert event.position == (event.epoch, event.seq)
    assert event.raw == raw


@pytest.mark.parametrize(
    "spelling",
    [
        "true",
        "false",
        '"1"',
        "[]",
        "{}",
        "1.5",
        "1e-1",
        "-1",
        "-1.0",
        "9223372036854775808",
        "9223372036854775808.0",
        "9.223372036854775808e18",
        "1e19",
        "1e999999999",
        "9007199254740993.5",
    ],
)
@pytest.mark.parametrize("name", ["seq", "epoch"])
def test_what_is_no_position(name: str, spelling: str) -> None:
    raw = text(BASE, name)[:-1] + f',"{name}":{spelling}}}'.encode()
    error = refusal(raw)
    assert name in error.detail or "integer too large" in error.detail
    assert error.event_id == BASE["id"]


@pytest.mark.parametrize(
    "spelling",
    [
        '"seq":3',
        '"seq":4',
        '"agent":"claude-code"',
        '"type":"tool.completed"',
        '"\\u0074ype":"tool.completed"',
        '"\\u0073eq":3',
        '"a":1,"a":1',
        '"a":1,"\\u0061":1',
        '"data":{},"data":{}',
        '"data":{},"\\u0064ata":{}',
        '"subject":"x","subject":"x"',
        '"aep" : "0.1"',
        '"x":{},"x":1',
    ],
)
def test_a_member_that_occurs_twice_is_refused(spelling: str) -> None:
    error = refusal(spelled(spelling))
    assert error.detail.endswith("occurs more than once")
    assert error.event_id == BASE["id"]


@pytest.mark.parametrize("name", ["id", "\\u0069d", "i\\u0064"])
def test_an_id_that_occurs_twice_names_no_event(name: str) -> None:
    error = refusal(spelled(f'"{name}":"other"'))
    assert error.detail == '"id" occurs more than once'
    assert error.event_id is None


def test_an_escaped_name_is_the_name() -> None:
    raw = text(BASE).replace(b'"id"', b'"\\u0069d"').replace(b'"session"', b'"sess\\u0069on"')
    assert decode(raw).key == decode(text(BASE)).key
    assert decode(raw).raw == raw


def test_an_escaped_value_is_the_value() -> None:
    raw = text(BASE).replace(b"tool.completed", b"tool.complete\\u0064").replace(b"aep://", b"aep:\\/\\/")
    assert (decode(raw).type, decode(raw).source) == ("tool.completed", BASE["source"])


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b" ",
        b"null",
        b"[]",
        b'"x"',
        b"1",
        b"{}",
        b"{",
        b"}",
        text(BASE)[:-1],
        text(BASE) + b"}",
        text(BASE) + b"{}",
        text(BASE) + b"\n" + text(BASE),
        text(BASE) + b"\0",
        b"\0" + text(BASE),
        text(BASE) + b"x",
        text(BASE) + b"\x0b",
        b"\x0c" + text(BASE),
        b"\xef\xbb\xbf" + text(BASE),
        text(BASE)[:-1] + b",}",
        text(BASE).decode().encode("utf-16"),
        text(BASE).replace(b'"', b"'"),
        text(BASE).replace(b"1240", b"NaN"),
        text(BASE).replace(b"1240", b"Infinity"),
        text(BASE).replace(b"1240", b"-Infinity"),
        text(BASE).replace(b"1240", b"01"),
        text(BASE).replace(b"1240", b"+1"),
        text(BASE).replace(b"1240", b"1."),
        text(BASE).replace(b"1240", b".5"),
        text(BASE).replace(b"1240", b"0x10"),
        text(BASE).replace(b"1240", b"tru"),
        text(BASE).replace(b"1240", b"1//"),
        text(BASE).replace(b"success", b"a\x01b"),
        text(BASE).replace(b"success", b"a\nb"),
        text(BASE).replace(b"success", b"\\x41"),
        text(BASE).replace(b"success", b"\\u12"),
    ],
)
def test_what_is_not_json_or_no_event(raw: bytes) -> None:
    assert refusal(raw).code == "invalid-event"


@pytest.mark.parametrize(
    "place", [b"Bash", b"success", b"duration_ms", b"t_91", b"claude-code", b"turn-3", b"TEST"]
)
@pytest.mark.parametrize(
    "broken",
    [
        b"\xff",
        b"\xc3",
        b"\xc0\xaf",
        b"\xed\xa0\x80",
        b"\xf4\x90\x80\x80",
        b"\xe2\x82",
        b"\\ud800",
        b"\\uDC00",
        b"\\ud800\\ud800",
        b"\\udc00\\ud800",
        b"\\ud83d x \\ude00",
    ],
)
def test_text_is_unicode_everywhere(place: bytes, broken: bytes) -> None:
    for padding in (b"", b"long enough for a vectorised loop " * 4):
        refusal(text(BASE).replace(place, place + padding + broken))
        refusal(text(BASE).replace(place, place + padding + broken + padding))


def test_surrogate_pairs_are_text() -> None:
    assert decode(text(BASE).replace(b"Bash", b"\\ud83d\\ude00")).subject == "\U0001f600"


@pytest.mark.parametrize(
    "inside", [b"[" * 100_000, b"[" * 100_000 + b"]" * 100_000, b'{"a":' * 100_000, b"[" * 5000 + b"]" * 5000]
)
def test_deep_nesting_is_refused_cleanly(inside: bytes) -> None:
    assert refusal(text(BASE, "data")[:-1] + b',"data":{"a":' + inside + b"}}").code == "invalid-event"


def test_the_bound_on_nesting_is_exact() -> None:
    def deep(levels: int) -> bytes:
        arrays = levels - 2  # the envelope and ``data`` are two
        return text(BASE, "data")[:-1] + b',"data":{"a":' + b"[" * arrays + b"]" * arrays + b"}}"

    assert decode(deep(MAX_NESTING_LEVELS))
    assert "nested" in refusal(deep(MAX_NESTING_LEVELS + 1)).detail


def test_the_bound_on_nesting_does_not_depend_on_the_stack() -> None:
    raw = text(BASE, "data")[:-1] + b',"data":{"a":' + b"[" * 240 + b"]" * 240 + b"}}"

    def below(frames: int) -> Event:
        return below(frames - 1) if frames else decode(raw)

    assert below(400).raw == raw


def test_ordinary_events_take_the_quick_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(raw: bytes) -> None:
        raise AssertionError(raw)

    monkeypatch.setattr(envelope, "_read_exactly", refuse)
    for raw in (
        text(BASE),
        text(MINIMAL),
        text(BASE, subject='é"\\/\b\f\n\r\t\x7f\x1f\u2028\U0001f600'),
        json.dumps(BASE).encode(),
        json.dumps(BASE, indent=2).encode(),
        text(BASE, acmeregion="eu-1", count=3, flag=True),
        json.dumps(BASE | {"acmeregion": "a b c"}, indent="\t").encode(),
    ):
        assert decode(raw).raw == raw
