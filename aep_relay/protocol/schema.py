"""What a registered type's payload may hold: JSON types, closed vocabularies, what is required, how much content.

A relay needs none of it, since routing never reads payloads; who checks Events before they are sent does. Derived from
``registry``: a field with fields below it is an object or an array, the names in ``_BY_NAME`` have one type wherever
they occur, the rest is text; what differs from that is written down by type. Invariants: a payload of any shape is
worked through without raising; what the registry doesn't list is allowed. AEP-0002 §5; AEP-0001 §8.2.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

import msgspec

from aep_relay.protocol.errors import quoted
from aep_relay.protocol.event import Event
from aep_relay.protocol.grammar import is_time
from aep_relay.protocol.jsontext import JsonError, exact_integer, loads
from aep_relay.protocol.registry import CAPTURES, NACK_REASONS, TYPES, Capture, Field

RESERVED: Final = frozenset({"message.user.submitted", "message.agent.replied"})
"""Registered without a payload schema."""

MAX_FINDINGS: Final = 50
"""About one Event; a payload of a million wrong items says the same over and over."""


class Level(IntEnum):
    """How much a finding matters."""

    NOTE = 0
    WARNING = 1
    ERROR = 2


@dataclass(frozen=True, slots=True)
class Finding:
    """Something to say about one Event. ``path`` is the member it is about, empty for the whole."""

    level: Level
    text: str
    path: str = ""

    def __str__(self) -> str:
        return f"{self.path}: {self.text}" if self.path else self.text


@dataclass(frozen=True, slots=True)
class Kind:
    """What a value has to be: one of ``types``, if ``choices`` are given one of them, not below ``minimum``."""

    types: tuple[str, ...] = ("string",)
    choices: tuple[str, ...] = ()
    minimum: int | None = None
    is_time: bool = False


@dataclass(frozen=True, slots=True)
class Node:
    """One payload field, with the fields below it by member name, and what the items of an array are."""

    kind: Kind
    registered: Field
    required: bool = False
    members: dict[str, Node] = field(default_factory=dict)
    item: Kind | None = None


_COUNT = Kind(("integer",), minimum=0)
_AMOUNT = Kind(("number",), minimum=0)
_NUMBER = Kind(("number",))
_INTEGER = Kind(("integer",))
_BOOLEAN = Kind(("boolean",))
_OBJECT = Kind(("object",))
_ARRAY = Kind(("array",))
_TEXT = Kind()

_BY_NAME: Final[Mapping[str, Kind]] = {
    name: kind
    for kind, names in (
        (
            _COUNT,
            "after_ms bytes count document_index duration_ms estimated_token_count forgotten initial_num_steps"
            " gen_ai.usage.input_tokens gen_ai.usage.output_tokens interval_ms latency_ms rev runs since_ms tick top_k",
        ),
        (_AMOUNT, "percent"),
        (_NUMBER, "gen_ai.evaluation.score.value max min rating score"),
        (_OBJECT, "args args_redacted context metadata values"),
        (_BOOLEAN, "fatal multi other required"),
    )
    for name in names.split()
}
_SPANS: Final = ("page", "block", "char", "start", "end")

_BY_TYPE: Final[Mapping[str, Mapping[str, Kind]]] = {
    "tool.completed": {name: Kind(("object", "string")) for name in ("result", "result_redacted")},
    "attention.requested": {"expires_at": Kind(is_time=True)},
    "state.snapshot": {"state": _OBJECT},
    "state.delta": {"delta": _ARRAY},
}
_ITEMS_BY_TYPE: Final[Mapping[str, Mapping[str, Kind]]] = {
    "attention.requested": {"respond_via": Kind(choices=("control", "oob"))},
    "state.delta": {"delta": _OBJECT},
}

_CHOICES: Final[Mapping[str, Mapping[str, str]]] = {
    "session.ended": {"reason": "normal error timeout killed compaction"},
    "run.started": {"trigger": "user schedule agent control resume"},
    "run.cancelled": {"by": "user control policy shutdown"},
    "tool.denied": {"by": "policy user_setting runtime"},
    "attention.requested": {
        "kind": "permission input auth review form other",
        "fields[].type": "string number boolean select",
    },
    "attention.answered": {"via": "control oob"},
    "attention.resolved": {"resolution": "answered auto dismissed"},
    "agent.presence": {"state": "online offline busy"},
    "agent.health": {"status": "ok degraded failing"},
    "assessment.guardrail.recorded": {
        "guardrail.stage": "input output",
        "guardrail.verdict": "allowed flagged blocked modified",
    },
    "control.cancel": {"scope": "run session"},
    "control.rejected": {"reason": " ".join(NACK_REASONS)},
}

_REQUIRED: Final[Mapping[str, str]] = {
    "session.started": "parent.session client.name",
    "run.failed": "reason",
    "tool.requested": "tool tool.name",
    "tool.completed": "tool tool.name",
    "tool.failed": "tool tool.name error",
    "tool.denied": "tool tool.name by",
    "attention.requested": "kind prompt options[].id options[].label fields[].id fields[].type fields[].label"
    " fields[].choices[].id fields[].choices[].label",
    "attention.answered": "answer",
    "attention.resolved": "resolution",
    "agent.presence": "state",
    "agent.health": "status",
    "control.attention.respond": "answer",
    "control.cancel": "scope",
    "control.rejected": "reason",
}
_REQUIRED_EVERYWHERE: Final = "cost.currency"


def _kind(type_: str, path: str, fields: Mapping[str, Field]) -> Kind:
    choices = _CHOICES.get(type_, {}).get(path)
    if choices is not None:
        return Kind(choices=tuple(choices.split()))
    given = _BY_TYPE.get(type_, {}).get(path)
    if given is not None:
        return given
    if path in _ITEMS_BY_TYPE.get(type_, {}) or any(other.startswith(f"{path}[].") for other in fields):
        return _ARRAY
    if any(other.startswith(f"{path}.") for other in fields):
        return _OBJECT
    parent, _, name = path.rpartition(".")
    if ".offset." in path and name in _SPANS:
        return _INTEGER
    if parent == "cost":
        return _TEXT if name == "currency" else _AMOUNT
    return _BY_NAME.get(path) or _BY_NAME.get(name, _TEXT)


def _tree(type_: str, fields: Mapping[str, Field]) -> Node:
    """Return the payload of a type as a tree, its root the payload itself."""
    required = {*_REQUIRED.get(type_, "").split(), _REQUIRED_EVERYWHERE}
    root = Node(_OBJECT, Field(Capture.METADATA))
    nodes: dict[str, Node] = {}
    for path in sorted(fields, key=len):
        parent, name = root, path
        for above in nodes:
            for joint in (".", "[]."):
                rest = path.removeprefix(above + joint)
                if len(rest) < len(name):
                    parent, name = nodes[above], rest
        kind = _kind(type_, path, fields)
        item = _ITEMS_BY_TYPE.get(type_, {}).get(path) or (_OBJECT if kind is _ARRAY else None)
        nodes[path] = parent.members[name] = Node(kind, fields[path], path in required, item=item)
    return root


SCHEMAS: Final[Mapping[str, Node]] = {type_: _tree(type_, fields) for type_, fields in TYPES.items()}
"""The payload of every registered type."""


def check_payload(event: Event) -> list[Finding]:
    """Return what is wrong with the payload of ``event``, and what can't be said about it; at most ``MAX_FINDINGS``."""
    findings = []
    for finding in _findings(event):
        findings.append(finding)
        if len(findings) == MAX_FINDINGS:
            break
    return findings


def _findings(event: Event) -> Iterator[Finding]:
    schema = SCHEMAS.get(event.type)
    members = msgspec.json.decode(event.raw, type=dict[str, msgspec.Raw])
    if "data" not in members:
        if schema is not None and event.capture != Capture.NONE:
            yield from _missing(schema, {}, "data.")
        return
    if event.capture == Capture.NONE:
        yield Finding(Level.ERROR, "capture is none, which admits no payload", "data")
        return
    try:
        data = loads(bytes(members["data"]))
    except JsonError as error:
        yield Finding(Level.WARNING, str(error), "data")
        data = _loosely(bytes(members["data"]))
    if schema is None:
        if event.type in RESERVED:
            yield Finding(
                Level.NOTE, f"{event.type} is reserved without a payload: below full it loses its data"
            )
        else:
            yield Finding(Level.NOTE, f"{event.type} is not registered: below full it loses its data")
        return
    yield from _value(schema, data, "data", event)


def _loosely(spelled: bytes) -> object:
    """Return a payload that ``loads`` refuses as far as it can be had."""
    try:
        return msgspec.json.decode(spelled)
    except ValueError:
        return {}


def _value(node: Node, value: object, path: str, event: Event) -> Iterator[Finding]:
    if node.registered.level > event.capture:
        needed, declared = CAPTURES[node.registered.level], CAPTURES[event.capture]
        yield Finding(Level.ERROR, f"content of level {needed} in an Event of capture {declared}", path)
    problem = _mismatch(node.kind, value)
    if problem is not None:
        yield Finding(Level.ERROR, problem, path)
    elif isinstance(value, dict):
        yield from _members(node, value, path, event)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            item_path = f"{path}[{index}]"
            problem = None if node.item is None else _mismatch(node.item, item)
            if problem is not None:
                yield Finding(Level.ERROR, problem, item_path)
            elif isinstance(item, dict):
                yield from _members(node, item, item_path, event)


def _members(node: Node, value: Mapping[str, object], path: str, event: Event) -> Iterator[Finding]:
    yield from _missing(node, value, f"{path}.")
    for name, member in value.items():
        below = node.members.get(name)
        if below is not None:
            member_path = f"{path}.{name}"
            yield from _value(below, member, member_path, event)
            if below.registered.exception and event.capture < Capture.REDACTED:
                yield from _structural(name, member, value, member_path)


def _missing(node: Node, value: Mapping[str, object], prefix: str) -> Iterator[Finding]:
    for name, below in node.members.items():
        if below.required and name not in value:
            yield Finding(Level.ERROR, "is missing", prefix + name)


def _structural(name: str, value: object, siblings: Mapping[str, object], path: str) -> Iterator[Finding]:
    """Check a field that below ``redacted`` holds no text of its own (AEP-0003 §9.2)."""
    if name == "values" and isinstance(value, dict):
        for key, answer in value.items():
            if not isinstance(answer, int | float):
                yield Finding(Level.ERROR, "below redacted, values are numbers and booleans", f"{path}.{key}")
    elif name == "label" and value != siblings.get("id"):
        yield Finding(Level.WARNING, "below redacted, the id stands in for the label", path)
    elif name == "prompt" and isinstance(value, str) and " requests " not in value:
        yield Finding(
            Level.WARNING, "below redacted, a prompt is made of agent, kind and subject alone", path
        )


def _mismatch(kind: Kind, value: object) -> str | None:
    """Return why ``value`` is not of ``kind``."""
    if not any(_is(type_, value) for type_ in kind.types):
        return f"is not {' or '.join(_ARTICLES[type_] for type_ in kind.types)}"
    if kind.choices and value not in kind.choices:
        return f"{quoted(str(value))} is none of {', '.join(kind.choices)}"
    if kind.minimum is not None and isinstance(value, int | float) and value < kind.minimum:
        return f"is less than {kind.minimum}"
    if kind.is_time and isinstance(value, str) and not is_time(value):
        return f"{quoted(value)} is not an RFC 3339 date and time with a timezone"
    return None


_ARTICLES: Final = {
    "string": "a string",
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "object": "an object",
    "array": "an array",
}
_PYTHON: Final[Mapping[str, type | tuple[type, ...]]] = {
    "string": str,
    "number": (int, float),
    "boolean": bool,
    "object": dict,
    "array": list,
}


def _is(type_: str, value: object) -> bool:
    if type_ == "integer":
        return exact_integer(value) is not None
    return isinstance(value, _PYTHON[type_]) and (type_ == "boolean" or not isinstance(value, bool))
