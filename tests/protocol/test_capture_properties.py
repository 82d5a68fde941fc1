"""Down-leveling over payloads nobody thought of: nothing above the ceiling, nothing raised, nothing lost."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aep_relay.protocol.capture import downlevel
from aep_relay.protocol.event import Event, decode
from aep_relay.protocol.registry import COMMAND_TYPES, TYPES, Capture
from tests.protocol.samples import MINIMAL, text

EXCEPTIONAL = ("attention.requested", "attention.answered", "control.attention.respond")


def event(type_: str, data: object, **more: object) -> Event:
    members: dict[str, object] = MINIMAL | {"type": type_, "capture": "full", "data": data} | more
    absent = ["seq"] if type_ == "attention.routed" or type_ in COMMAND_TYPES else []
    if type_.startswith("agent."):
        absent = ["session", "seq"]
    return decode(text(members, *absent))


def mark(path: str, level: Capture) -> str:
    return f"<{level.name}> {path}"


def place(root: dict[str, Any], path: list[str], value: str, cut: int) -> None:
    """Put ``value`` at ``path``; names before position ``cut`` nest, those from there on are joined by dots."""
    names, last = path[:cut], ".".join(path[cut:])
    for name in names:
        if name.endswith("[]"):
            items = root.setdefault(name.removesuffix("[]"), [{}])
            root = items[0] if isinstance(items, list) else {}
        else:
            below = root.setdefault(name, {})
            root = below if isinstance(below, dict) else {}
    root[last] = value


def payloads(type_: str, cut: int) -> dict[str, Any]:
    """A payload with every gated field of the type, nested down to ``cut`` levels and dotted from there."""
    root: dict[str, Any] = {}
    for path, field in TYPES[type_].items():
        if field.level > Capture.METADATA or field.exception:
            level = Capture.REDACTED if field.exception else field.level
            parts = path.split(".")
            place(root, parts, mark(path, level), min(cut, len(parts) - 1))
    return root


@pytest.mark.parametrize("cut", range(4))
@pytest.mark.parametrize("type_", sorted(TYPES))
def test_gated_fields_go_however_they_are_nested(type_: str, cut: int) -> None:
    data = payloads(type_, cut)
    at_metadata = downlevel(event(type_, data), Capture.METADATA).decode()
    assert "<REDACTED>" not in at_metadata
    assert "<FULL>" not in at_metadata
    redacted = downlevel(
        event(type_, data), Capture.REDACTED, lambda value: value.replace("<REDACTED>", "<ok>")
    )
    assert b"<REDACTED>" not in redacted
    assert b"<FULL>" not in redacted


def escaped(source: Event) -> Event:
    """The same Event, each character of its strings spelled as an escape."""

    def spell(string: re.Match[str]) -> str:
        return '"' + "".join(rf"\u{ord(character):04x}" for character in string[1]) + '"'

    return decode(re.sub(r'"([^"\\]*)"', spell, source.raw.decode()).encode())


@pytest.mark.parametrize("cut", range(4))
@pytest.mark.parametrize("type_", sorted(TYPES))
def test_how_a_name_is_spelled_makes_no_difference(type_: str, cut: int) -> None:
    source = event(type_, payloads(type_, cut))
    for ceiling, redact in ((Capture.METADATA, None), (Capture.REDACTED, str.upper)):
        plain = json.loads(downlevel(source, ceiling, redact))
        assert json.loads(downlevel(escaped(source), ceiling, redact)) == plain


@pytest.mark.parametrize("type_", sorted(TYPES))
def test_what_may_stay_stays(type_: str) -> None:
    kept = {
        path: 1 for path, field in TYPES[type_].items() if field.level is Capture.METADATA and "." not in path
    }
    plain = {
        name: 1
        for name in kept
        if not any(other.startswith((f"{name}.", f"{name}[]")) for other in TYPES[type_])
    }
    for ceiling in (Capture.METADATA, Capture.REDACTED):
        found = json.loads(downlevel(event(type_, plain), ceiling, lambda value: value))
        assert found["data"] == (
            plain if "prompt" not in plain or ceiling > 1 else plain | {"prompt": found["data"]["prompt"]}
        )


@pytest.mark.parametrize("type_", [type_ for type_ in sorted(TYPES) if type_ not in EXCEPTIONAL])
def test_redacted_fields_pass_a_redacting_relay_unchanged_if_nothing_is_found(type_: str) -> None:
    data = payloads(type_, 3)
    found = json.loads(downlevel(event(type_, data), Capture.REDACTED, lambda value: value))
    assert strings(found["data"]) == [value for value in strings(data) if "<FULL>" not in value]


def strings(value: object) -> list[str]:
    return list(found_strings(value))


def found_strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from found_strings(inner)


names = st.sampled_from(
    sorted(
        {part.removesuffix("[]") for fields in TYPES.values() for path in fields for part in path.split(".")}
    )
    + sorted({path for fields in TYPES.values() for path in fields})
    + ["", ".", "..", "[", "[]", "id", "é", "error.", "a.b", "\x00"]
)
odd_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=6),
    max_leaves=25,
)
types = st.sampled_from([*EXCEPTIONAL, *sorted(TYPES), "x.acme.foo.bar"])


@given(types, st.dictionaries(names, odd_values, max_size=8), st.booleans())
def test_odd_payloads_are_worked_through(type_: str, data: dict[str, object], spaced: bool) -> None:
    source = event(type_, data)
    if spaced:
        source = decode(json.dumps(json.loads(source.raw), indent=1).encode())
    before = json.loads(source.raw)
    for ceiling, redact in ((0, None), (1, None), (2, None), (2, str.upper)):
        source.variants = None
        raw = downlevel(source, ceiling, redact)
        again = decode(raw)
        after = json.loads(raw)
        assert b"\n" not in raw
        assert again.capture == (1 if ceiling == 2 and redact is None else ceiling)
        assert {**after, "data": 0, "capture": 0} == {**before, "data": 0, "capture": 0}
        assert list(after) == [name for name in before if name in after]
        assert downlevel(again, again.capture) is raw or downlevel(again, again.capture) == raw


@given(types, st.dictionaries(names, odd_values, max_size=8))
def test_down_leveling_twice_is_down_leveling_once(type_: str, data: dict[str, object]) -> None:
    source = event(type_, data)
    redacted = decode(downlevel(source, Capture.REDACTED, lambda value: value))
    assert downlevel(redacted, Capture.METADATA) == downlevel(source, Capture.METADATA)
    assert downlevel(redacted, Capture.NONE) == downlevel(source, Capture.NONE)
    again = downlevel(source, Capture.METADATA).replace(b'"capture":"metadata"', b'"capture":"full"', 1)
    assert downlevel(decode(again), Capture.METADATA) == downlevel(source, Capture.METADATA)


@given(types, st.dictionaries(names, odd_values, max_size=8))
def test_no_text_is_made_up(type_: str, data: dict[str, object]) -> None:
    found = json.loads(downlevel(event(type_, data, agent="bot"), Capture.METADATA))
    for value in strings(found.get("data")):
        assert value in strings(data) or value.startswith("bot requests ")


@given(st.dictionaries(names, odd_values, max_size=8))
def test_numbers_keep_their_digits(data: dict[str, object]) -> None:
    source = event("run.step.finished", data)
    spelled = (
        source.raw.replace(b'"data":', b'"data":{"n":[1.50,1E999,-0,12345678901234567890123],"v":')[:-1]
        + b"}}"
    )
    kept = downlevel(decode(spelled), Capture.METADATA)
    assert b'"n":[1.50,1E999,-0,12345678901234567890123]' in kept
