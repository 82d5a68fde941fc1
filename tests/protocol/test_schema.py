"""Payload checks: the table against a copy of the registry's facts, and payloads of every shape."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aep_relay.protocol.event import decode
from aep_relay.protocol.registry import CAPTURES, TYPES, Capture, Field
from aep_relay.protocol.schema import MAX_FINDINGS, SCHEMAS, Finding, Kind, Level, Node, check_payload
from tests.protocol.samples import MINIMAL, text

DATA = Path(__file__).parents[1] / "data"
NOTHING = Node(Kind(("object",)), Field(Capture.METADATA))
COMMANDS = ("control.attention.respond", "control.cancel", "control.pause", "control.resume")


def facts(node: Node, prefix: str = "") -> dict[str, dict[str, object]]:
    """What a schema says, in the registry's words."""
    found: dict[str, dict[str, object]] = {}
    for name, below in node.members.items():
        kind = below.kind
        fact: dict[str, object] = {"capture": CAPTURES[below.registered.level]}
        if kind.choices:
            fact["enum"] = list(kind.choices)
        else:
            fact["type"] = kind.types[0] if len(kind.types) == 1 else list(kind.types)
        if kind.minimum is not None:
            fact["minimum"] = kind.minimum
        if kind.is_time:
            fact["format"] = "date-time"
        if below.required:
            fact["required"] = True
        if below.registered.exception:
            fact["exception"] = True
        if below.item is not None:
            fact["items"] = list(below.item.choices) or below.item.types[0]
        found[prefix + name] = fact
        found.update(facts(below, f"{prefix}{name}{'[].' if 'array' in kind.types else '.'}"))
    return found


def test_it_is_the_registry() -> None:
    registry = json.loads((DATA / "payloads.json").read_text(encoding="utf-8"))
    for type_, fields in registry.items():
        for fact in fields.values():
            if "enum" in fact:
                fact.pop("type", None)
        assert facts(SCHEMAS.get(type_, NOTHING)) == fields, type_
    assert SCHEMAS.keys() <= registry.keys()


def findings(type_: str, data: object = None, capture: str = "full", **members: object) -> list[str]:
    """What is said of an Event of ``type_`` with ``data``, worst first."""
    attributes = {"type": type_, "capture": capture, **({} if data is None else {"data": data}), **members}
    found = check_payload(decode(text(MINIMAL, **attributes)))
    return [str(finding) for finding in sorted(found, key=lambda finding: -finding.level)]


def test_the_golden_events_have_nothing_wrong() -> None:
    for line in (DATA / "golden.jsonl").read_bytes().splitlines():
        assert [str(f) for f in check_payload(decode(line)) if f.level > Level.NOTE] == []


TOOL = {"tool": {"name": "Bash"}}
ASK: dict[str, Any] = {"kind": "input", "prompt": "tester requests input"}


@pytest.mark.parametrize(
    ("type_", "data", "capture", "said"),
    [
        ("tool.requested", TOOL, "metadata", []),
        ("tool.requested", {}, "metadata", ["data.tool: is missing"]),
        ("tool.requested", {"tool": {}}, "metadata", ["data.tool.name: is missing"]),
        ("tool.requested", {"tool": {"name": 1}}, "metadata", ["data.tool.name: is not a string"]),
        ("tool.requested", {"tool": []}, "metadata", ["data.tool: is not an object"]),
        ("tool.requested", None, "metadata", ["data.tool: is missing"]),
        ("tool.requested", None, "none", []),
        ("tool.requested", TOOL, "none", ["data: capture is none, which admits no payload"]),
        ("tool.requested", {**TOOL, "args": {"a": 1}}, "full", []),
        ("tool.requested", {**TOOL, "args": {"a": 1}}, "redacted",
         ["data.args: content of level full in an Event of capture redacted"]),
        ("tool.requested", {**TOOL, "args_redacted": {}}, "metadata",
         ["data.args_redacted: content of level redacted in an Event of capture metadata"]),
        ("tool.requested", {**TOOL, "unheard": {"of": None}}, "metadata", []),
        ("tool.completed", {**TOOL, "duration_ms": 1.0}, "metadata", []),
        ("tool.completed", {**TOOL, "duration_ms": 1.5}, "metadata", ["data.duration_ms: is not an integer"]),
        ("tool.completed", {**TOOL, "duration_ms": True}, "metadata", ["data.duration_ms: is not an integer"]),
        ("tool.completed", {**TOOL, "duration_ms": -1}, "metadata", ["data.duration_ms: is less than 0"]),
        ("tool.completed", {**TOOL, "result": "text"}, "full", []),
        ("tool.completed", {**TOOL, "result": 1}, "full", ["data.result: is not an object or a string"]),
        ("session.ended", {"reason": "bored"}, "metadata",
         ['data.reason: "bored" is none of normal, error, timeout, killed, compaction']),
        ("session.ended", {"reason": ["normal"]}, "metadata", ["data.reason: is not a string"]),
        ("run.finished", {"cost": {"total": 1}}, "metadata", ["data.cost.currency: is missing"]),
        ("run.finished", {"gen_ai.usage.input_tokens": "9"}, "metadata",
         ["data.gen_ai.usage.input_tokens: is not an integer"]),
        ("attention.requested", ASK, "metadata", []),
        ("attention.requested", {**ASK, "prompt": "May I?"}, "metadata",
         ["data.prompt: below redacted, a prompt is made of agent, kind and subject alone"]),
        ("attention.requested", {**ASK, "prompt": "May I?"}, "redacted", []),
        ("attention.requested", {**ASK, "options": [{"id": "a", "label": "a"}, {"id": "b"}, 7]}, "metadata",
         ["data.options[1].label: is missing", "data.options[2]: is not an object"]),
        ("attention.requested", {**ASK, "options": [{"id": "a", "label": "Allow"}]}, "metadata",
         ["data.options[0].label: below redacted, the id stands in for the label"]),
        ("attention.requested", {**ASK, "respond_via": ["control", "pigeon"]}, "metadata",
         ['data.respond_via[1]: "pigeon" is none of control, oob']),
        ("attention.requested", {**ASK, "expires_at": "soon"}, "metadata",
         ['data.expires_at: "soon" is not an RFC 3339 date and time with a timezone']),
        ("attention.answered", {"answer": {"values": {"n": 1, "b": True, "s": "text"}}}, "metadata",
         ["data.answer.values.s: below redacted, values are numbers and booleans"]),
        ("attention.answered", {"answer": {"values": {"s": "text"}}}, "redacted", []),
        ("resource.citation.recorded", {"citations": [{"offset": {"char": {"start": "x"}}}]}, "metadata",
         ["data.citations[0].offset.char.start: is not an integer"]),
        ("tool.sharpened", {"a": 1}, "full", ["tool.sharpened is not registered: below full it loses its data"]),
        ("message.user.submitted", {"a": 1}, "full",
         ["message.user.submitted is reserved without a payload: below full it loses its data"]),
        ("x.acme.thing.happened", None, "metadata", []),
    ],
)  # fmt: skip
def test_what_is_said(type_: str, data: object, capture: str, said: list[str]) -> None:
    assert findings(type_, data, capture) == said


def test_a_name_that_occurs_twice_is_worth_a_warning() -> None:
    raw = text(MINIMAL, type="session.ended")[:-1] + b',"data":{"reason":"normal","reason":"error"}}'
    assert check_payload(decode(raw)) == [Finding(Level.WARNING, "a member name occurs twice", "data")]


def test_a_payload_of_wrong_items_does_not_make_a_list_without_end() -> None:
    assert len(findings("attention.requested", {**ASK, "options": [1] * 1000})) == MAX_FINDINGS


NAMES = st.sampled_from(
    sorted({part for fields in TYPES.values() for path in fields for part in path.split(".")})
)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=3),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(NAMES, below, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from(sorted(TYPES)), st.dictionaries(NAMES, JSON, max_size=4), st.sampled_from(CAPTURES))
def test_any_payload_is_worked_through(type_: str, data: dict[str, object], capture: str) -> None:
    scope: dict[str, object] = {"type": type_, "capture": capture, "data": data}
    gone = ["session", "seq"] if type_.startswith("agent.") else []
    gone += ["seq"] if type_ == "attention.routed" or type_ in COMMANDS else []
    check_payload(decode(text(MINIMAL, *gone, **scope)))
