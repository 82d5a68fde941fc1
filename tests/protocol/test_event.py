"""The envelope, attribute by attribute; what the relay makes of it."""

from __future__ import annotations

import json

import pytest

from aep_relay.protocol import event as event_module
from aep_relay.protocol.envelope import MAX_EXTENSION_BYTES
from aep_relay.protocol.errors import EventTooLarge, InvalidEvent
from aep_relay.protocol.event import MAX_SESSION_CHARS, MAX_SOURCE_CHARS, MAX_TYPE_CHARS, Shape, decode
from aep_relay.protocol.jsontext import MAX_CONTAINERS
from tests.protocol.samples import BASE, MINIMAL, refusal, spelled, text

MIB = 1 << 20
CORE = sorted(BASE)


def test_every_attribute_is_read() -> None:
    event = decode(text(BASE))
    for name in (
        "id",
        "type",
        "subject",
        "time",
        "source",
        "agent",
        "session",
        "run",
        "step",
        "seq",
        "cause",
    ):
        assert getattr(event, name) == BASE[name]
    assert (event.epoch, event.position, event.shape) == (2, (2, 3), Shape.SESSION)
    assert (event.severity, event.capture) == (2, 2)
    assert event.key == (BASE["source"], BASE["id"])
    assert (event.extensions, event.variants) == (None, None)


def test_defaults() -> None:
    event = decode(text(MINIMAL))
    assert (event.severity, event.capture, event.epoch, event.position) == (1, 1, 0, (0, 3))
    assert (event.subject, event.run, event.step, event.cause, event.extensions) == (None,) * 5


@pytest.mark.parametrize("name", ["aep", "id", "type", "time", "source", "agent"])
def test_required_attributes(name: str) -> None:
    assert refusal(text(BASE, name)).detail == f"{name} is missing"


@pytest.mark.parametrize("name", CORE)
def test_null_is_refused_everywhere(name: str) -> None:
    assert "null" in refusal(text(BASE, **{name: None})).detail


@pytest.mark.parametrize("value", [1, 1.5, True, [], {}, ["x"], {"x": 1}])
@pytest.mark.parametrize("name", [name for name in CORE if name not in ("seq", "epoch", "data")])
def test_strings_are_strings(name: str, value: object) -> None:
    assert refusal(text(BASE, **{name: value})).detail == f"{name} is not a string"


@pytest.mark.parametrize("name", [name for name in CORE if name not in ("seq", "epoch", "data")])
def test_strings_are_not_empty(name: str) -> None:
    assert refusal(text(BASE, **{name: ""})).detail == f"{name} is empty"


@pytest.mark.parametrize("value", ["x", 1, 1.5, True, False, []])
def test_data_is_an_object(value: object) -> None:
    assert refusal(text(BASE, data=value)).detail == "data is not an object"


def test_data_may_be_anything_inside() -> None:
    data: dict[str, object] = {
        "": None,
        "a": [1, -0.0, 1e300, [], {}, None],
        "b": {"id": None, "seq": "x"},
        "ü": "\u2028\U0001f600",
    }
    assert decode(text(BASE, data=data)).raw == text(BASE, data=data)
    assert decode(spelled('"data":{"a":1,"a":2,"\\u0061":12345678901234567890123e999999}')).id == BASE["id"]


@pytest.mark.parametrize("aep", ["0.2", "0.10", "1", "0.1 ", "00.1"])
def test_the_version_is_exact(aep: str) -> None:
    assert "aep" in refusal(text(BASE, aep=aep)).detail


@pytest.mark.parametrize(
    ("spelling", "extensions"),
    [
        ('"acmeregion":"eu-1"', {"acmeregion": "eu-1"}),
        ('"a":""', {"a": ""}),
        ('"0":true,"1":false', {"0": True, "1": False}),
        ('"a":1,"b":1.0,"c":1e2,"d":-7', {"a": 1, "b": 1, "c": 100, "d": -7}),
        ('"a":9223372036854775808', {"a": 2**63}),
        (f'"{"a" * 20}":1', {"a" * 20: 1}),
        (' "a" : "x y" ', {"a": "x y"}),
        ('"\\u0061":"\\u0078"', {"a": "x"}),
        ('"a":"\\ud83d\\ude00"', {"a": "\U0001f600"}),
    ],
)
@pytest.mark.parametrize("members", [BASE, MINIMAL])
def test_extension_attributes(
    members: dict[str, object], spelling: str, extensions: dict[str, object]
) -> None:
    event = decode(spelled(spelling, members))
    assert event.extensions == extensions
    assert list(map(type, event.extensions.values())) == list(map(type, extensions.values()))
    assert event.raw == spelled(spelling, members)


@pytest.mark.parametrize(
    "spelling",
    [
        '"a":null',
        '"a":[]',
        '"a":["x"]',
        '"a":{}',
        '"a":1.5',
        '"a":1e-1',
        '"a":1e999999999',
        '"":1',
        '"A":1',
        '"a_b":1',
        '"a-b":1',
        '"a.b":1',
        '"é":1',
        '"Data":{}',
        '"aep_version":"0.1"',
        f'"{"a" * 21}":1',
        '" a":1',
        '"\\u0000":1',
    ],
)
def test_what_is_no_extension_attribute(spelling: str) -> None:
    assert refusal(spelled(spelling)).event_id == BASE["id"]


def test_the_bound_on_size() -> None:
    raw = text(BASE)
    assert decode(b" " + raw + b"\n", len(raw))
    with pytest.raises(EventTooLarge) as caught:
        decode(raw, len(raw) - 1)
    assert caught.value.http_status == 413
    with pytest.raises(EventTooLarge):
        decode(text(BASE, subject="x" * (4 * MIB)))


@pytest.mark.parametrize(
    ("type_", "shape"),
    [
        ("agent.presence", Shape.AGENT),
        ("agent.made_up.now", Shape.AGENT),
        ("control.attention.respond", Shape.COMMAND),
        ("control.cancel", Shape.COMMAND),
        ("control.pause", Shape.COMMAND),
        ("control.resume", Shape.COMMAND),
        ("x.acme.control.reboot", Shape.COMMAND),
        ("attention.routed", Shape.ROUTED),
        ("attention.routed.again", Shape.SESSION),
        ("attention.requested", Shape.SESSION),
        ("control.accepted", Shape.SESSION),
        ("control.rejected", Shape.SESSION),
        ("control.made_up", Shape.SESSION),
        ("message.made_up", Shape.SESSION),
        ("x.acme.agent.presence", Shape.SESSION),
        ("x.acme.run.control", Shape.SESSION),
    ],
)
def test_shapes(type_: str, shape: Shape) -> None:
    scope = ("session", "seq", "run", "step")
    wanted: dict[Shape, tuple[str, ...]] = {
        Shape.AGENT: (),
        Shape.COMMAND: ("session",),
        Shape.ROUTED: ("session",),
        Shape.SESSION: ("session", "seq"),
    }
    free = () if shape is Shape.AGENT else ("run", "step")
    absent = [name for name in scope if name not in wanted[shape] + free]
    event = decode(text(BASE, *absent, type=type_))
    assert event.shape is shape
    assert (event.position is not None) is (shape is Shape.SESSION)
    for name in wanted[shape]:
        assert refusal(text(BASE, *absent, name, type=type_)).detail == f"{name} is missing"
    for name in absent:
        others = [other for other in absent if other != name]
        assert refusal(text(BASE, *others, type=type_)).event_id == BASE["id"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("type", "hello"),
        ("type", "bogus.thing"),
        ("type", "tool.Completed"),
        ("type", "x.acme.foo"),
        ("type", "tool.completed\n"),
        ("time", "2026-07-03T10:15:04"),
        ("time", "2026-02-30T10:15:04Z"),
        ("time", "yesterday"),
        ("source", "host-a/agent"),
        ("source", "aep://host a/"),
        ("traceparent", "00-xyz"),
        ("traceparent", "00-4BF92F3577B34DA6A3CE929D0E0E4736-00F067AA0BA902B7-01"),
        ("severity", "fatal"),
        ("severity", "Info"),
        ("capture", "some"),
    ],
)
def test_strings_follow_their_grammar(name: str, value: str) -> None:
    for members in (
        text(BASE, **{name: value}),
        text(BASE, **{name: value}, ext=1),
        b" " + text(BASE, **{name: value}),
    ):
        error = refusal(members)
        assert name in error.detail
        assert error.event_id == BASE["id"]


@pytest.mark.parametrize("id_", [None, 1, "", [], {}])
def test_an_invalid_id_is_not_named(id_: object) -> None:
    assert refusal(text(BASE, id=id_)).event_id is None
    assert refusal(b"[]").event_id is None


def test_details_do_not_carry_what_was_sent_at_length() -> None:
    error = refusal(text(BASE, source="\x1b[31m" + "x" * 100_000))
    assert len(error.detail) < 300
    assert error.detail.isprintable()


def test_strings_that_repeat_are_shared() -> None:
    first, second = decode(text(BASE)), decode(text(BASE, id="other"))
    for name in ("type", "source", "agent", "session"):
        assert getattr(first, name) is getattr(second, name)


def test_what_repeats_is_kept_within_bounds() -> None:
    for number in range(5000):
        decode(text(MINIMAL, session=f"s{number}", source=f"aep:{number}", type=f"x.acme.t{number}.u"))
    decode(text(MINIMAL, agent="a" * 100_000))
    for cache in (event_module._types, event_module._sources, event_module._names):
        assert len(cache) <= 4096
        assert max(map(len, cache)) <= 256


def test_held_bytes_count_what_raw_does_not_show() -> None:
    plain = decode(text(BASE))
    assert plain.held_bytes > len(plain.raw) + 500
    many = decode(text(MINIMAL, **{f"x{n}": 1 for n in range(1000)}))
    assert many.held_bytes > 8 * len(many.raw)
    wide = decode(text(MINIMAL, subject="a" * 1000 + "\U0001f600"))
    assert wide.held_bytes > 5 * 1000
    for name in ("id", "subject", "run", "step", "cause", "agent"):
        # Kept twice: in ``raw``, and as the string that it is.
        assert decode(text(BASE, **{name: "a" * 50_000})).held_bytes > 100_000
        assert decode(text(BASE, **{name: "\U0001f600" * 5_000})).held_bytes > 2 * 20_000
    large = decode(text(BASE, data={"text": "a" * 50_000}))
    assert large.held_bytes - len(large.raw) == plain.held_bytes - len(plain.raw)
    before = plain.held_bytes
    plain.variants = {1: b"x" * 10_000}
    assert plain.held_bytes == before


def extended(count: int, name: str = "x{}", value: str = "1") -> bytes:
    members = ",".join(f'"{name.format(number)}":{value}' for number in range(count))
    return text(BASE)[:-1] + b"," + members.encode() + b"}"


def test_extension_attributes_are_bounded_in_all() -> None:
    fitting = MAX_EXTENSION_BYTES // len('"x1000":1,') - 200
    assert len(decode(extended(fitting)).extensions or ()) == fitting
    assert decode(extended(1, value='"' + "a" * (MAX_EXTENSION_BYTES - 500) + '"')).extensions
    for raw in (
        extended(fitting * 2),
        extended(1, value='"' + "a" * MAX_EXTENSION_BYTES + '"'),
        extended(fitting * 2, name="x"),
        extended(fitting * 2, name="\\u0069d", value='"i"'),
    ):
        with pytest.raises(EventTooLarge, match="extension attributes"):
            decode(raw)


def test_core_attributes_payload_and_whitespace_are_no_extension() -> None:
    long = "é" * MAX_EXTENSION_BYTES
    for raw in (
        text(BASE, subject=long, data={"a": long}),
        json.dumps({**BASE, "subject": long, "more": 1}).encode(),
        text(BASE).replace(b",", b"," + b" " * MAX_EXTENSION_BYTES),
        extended(2).replace(b",", b"," + b"\n" * MAX_EXTENSION_BYTES),
    ):
        assert decode(raw).raw == raw


def test_session_names_are_bounded() -> None:
    longest = "\U0001f600" * MAX_SESSION_CHARS
    assert decode(text(BASE, session=longest)).session == longest
    with pytest.raises(InvalidEvent, match="session is longer"):
        decode(text(BASE, session=longest + "a"))


def test_sources_are_bounded() -> None:
    longest = "a:" + "/" * (MAX_SOURCE_CHARS - 2)
    assert decode(text(BASE, source=longest)).source == longest
    with pytest.raises(InvalidEvent, match="source is longer"):
        decode(text(BASE, source=longest + "/"))


def test_types_are_bounded() -> None:
    longest = "tool" + ".a" * ((MAX_TYPE_CHARS - 4) // 2)
    assert decode(text(BASE, type=longest)).type == longest
    with pytest.raises(InvalidEvent, match="type is longer"):
        decode(text(BASE, type=longest + "a"))


def test_too_many_containers_are_too_large() -> None:
    with pytest.raises(EventTooLarge, match="objects and arrays"):
        decode(text(BASE, data={"a": [[]] * (MAX_CONTAINERS + 1)}))
