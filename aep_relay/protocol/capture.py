"""Down-leveling: an Event as a consumer with a lower capture ceiling may see it.

Driven by the registry: for each type and level a plan is made once that holds only what has to change, so
that everything else is copied as it is spelled. Invariants: never up; nothing that the registry places above
the level is left, be it nested or under a dotted name; a payload of any shape is worked through without
raising, and what cannot be classified goes; the output is one line, the envelope's members in their order.
AEP-0001 §8.2, AEP-0002 §5, AEP-0003 §6.4, §9.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from aep_relay.protocol.event import Event
from aep_relay.protocol.jsonl import one_line
from aep_relay.protocol.registry import CAPTURES, TYPES, Capture, Field

Redact = Callable[[str], str]
"""The redaction pipeline of AEP-0003 §9.4, over one string."""

_Members = dict[str, msgspec.Raw]

_read_members = msgspec.json.Decoder(_Members).decode
_read_items = msgspec.json.Decoder(list[msgspec.Raw]).decode
_read_string = msgspec.json.Decoder(str).decode
_write = msgspec.json.Encoder().encode

_STRING = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_STRINGS = re.compile(rf"(?:({_STRING})([ \t\r\n]*+:[ \t\r\n]*+))?({_STRING})".encode())
"""A string, with the name it is the value of if it is one."""

_STRUCTURAL = b"-0123456789tf"
"""How numbers and booleans begin."""

MAX_PARTS: Final = 10_000
"""As many members of an object that is worked through, and commas in an array whose items are (the options of a
question, say), are looked at. A field with more is none that can be classified in time: it goes."""

MAX_REDACTED_BYTES: Final = 32 * 1024
"""As much text of one Event goes through the redaction pipeline, which can take a microsecond a byte of a text that is
made for it. A field beyond that can't be classified in time: it goes."""

_STRING_BYTES: Final = 8
_MEMBER_BYTES: Final = 32
"""What a string counts for besides its bytes, and one that is the value of a name: it goes through several times, with
its name and without. Of the shortest there are thousands."""

_MAX_PATH_PARTS: Final = 16
"""More than any path of the registry has."""

_ITEMS: Final = "[]"


@dataclass(slots=True)
class _Job:
    """What the rules for one Event need besides the value at hand."""

    event: Event
    redact: Redact | None
    redacted_bytes: int = 0
    """How much text was redacted so far."""


_Rule = Callable[["_Plan", msgspec.Raw, _Members, _Job], "msgspec.Raw | None"]
"""What becomes of a value, given its sibling members; ``None``: it goes."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """What to do with one payload field. ``members`` are the fields below it that need something done."""

    rule: _Rule
    members: Mapping[str, _Plan] = field(default_factory=dict)


def downlevel(event: Event, ceiling: int, redact: Redact | None = None) -> bytes:
    """Return the text of ``event`` at ``ceiling``, a capture rank: ``raw`` itself unless that is too much.

    A ``redacted`` ceiling on a ``full`` Event yields ``metadata``, unless ``redact`` makes this a redacting
    re-emitter: then every string of the ``redacted`` level goes through it (AEP-0003 §6.4). The result is
    kept in ``event.variants``, so ``redact`` is to be the same at every call.
    """
    if ceiling >= event.capture:
        return event.raw
    level = int(Capture.METADATA) if ceiling == Capture.REDACTED and redact is None else ceiling
    if event.variants is None:
        event.variants = {}
    text = event.variants.get(level)
    if text is None:
        text = event.variants[level] = _rewrite(event, level, redact)
    return text


def _rewrite(event: Event, level: int, redact: Redact | None) -> bytes:
    members = _read_members(event.raw)
    members["capture"] = msgspec.Raw(_write(CAPTURES[level]))
    if "data" in members:
        plan = _PLANS[level].get(event.type)
        kept = None if plan is None else plan.rule(plan, members["data"], members, _Job(event, redact))
        if kept is None:
            del members["data"]
        else:
            members["data"] = kept
    return one_line(_write(members))


def _object(plan: _Plan, value: msgspec.Raw, _: _Members, job: _Job) -> msgspec.Raw | None:
    """Apply the plan to an object's members. Anything else in its place cannot be classified."""
    spelled = bytes(value)
    try:
        members = _read_members(spelled)
    except msgspec.ValidationError:
        return None
    if len(members) > MAX_PARTS:
        return None
    # Most members are copied: none is looked at that has neither a plan nor a name that could be a path.
    kept = dict(members)
    for name in plan.members.keys() & members.keys():
        _apply(plan.members[name], name, members, kept, job)
    # An escape can spell either character.
    if b"." in spelled or b"[" in spelled or b"\\u" in spelled:
        paths = [name for name in members if ("." in name or "[" in name) and name not in plan.members]
        for name in paths:
            rule = _rule_of_path(plan, name)
            if rule is not None:
                _apply(rule, name, members, kept, job)
    return msgspec.Raw(_write(kept))


def _apply(plan: _Plan, name: str, members: _Members, kept: _Members, job: _Job) -> None:
    """Put what ``plan`` leaves of a member into ``kept``, or take it out of there."""
    result = plan.rule(plan, members[name], members, job)
    if result is None:
        del kept[name]
    else:
        kept[name] = result


def _rule_of_path(plan: _Plan, name: str) -> _Plan | None:
    """Return what to do with a member whose name spells a path: what its place calls for, or more."""
    for part in name.split(".", _MAX_PATH_PARTS):
        if plan.rule in _WHOLE:
            return plan
        if plan.rule is _numbers:
            return _NUMBER
        if plan.rule is not _object:
            return _DROP
        below = plan.members.get(part.partition("[")[0])
        if below is None:
            return None
        plan = below
    return plan


def _array(plan: _Plan, value: msgspec.Raw, _: _Members, job: _Job) -> msgspec.Raw | None:
    """Apply the plan to an array's items."""
    if bytes(value).count(b",") > MAX_PARTS:
        return None
    try:
        items = _read_items(value)
    except msgspec.ValidationError:
        return None
    item_plan = plan.members[_ITEMS]
    results = (item_plan.rule(item_plan, item, {}, job) for item in items)
    return msgspec.Raw(_write([result for result in results if result is not None]))


def _drop(_: _Plan, value: msgspec.Raw, siblings: _Members, job: _Job) -> None:
    """The field lies above the level."""


def _prompt(_: _Plan, value: msgspec.Raw, siblings: _Members, job: _Job) -> msgspec.Raw:
    """Say structurally what ``attention.requested`` asks for (AEP-0003 §9.2)."""
    kind = siblings.get("kind", msgspec.Raw())
    text = f"{job.event.agent} requests {(_read_string(kind) if _is_string(kind) else '') or 'attention'}"
    return msgspec.Raw(_write(text if job.event.subject is None else f"{text}: {job.event.subject}"))


def _label(_: _Plan, value: msgspec.Raw, siblings: _Members, job: _Job) -> msgspec.Raw | None:
    """Let an item's ``id`` stand for its label."""
    id_ = siblings.get("id")
    return id_ if id_ is not None and _is_string(id_) else None


def _number(_: _Plan, value: msgspec.Raw, siblings: _Members, job: _Job) -> msgspec.Raw | None:
    """Keep a number or a boolean."""
    return value if bytes(value)[0] in _STRUCTURAL else None


def _numbers(plan: _Plan, value: msgspec.Raw, _: _Members, job: _Job) -> msgspec.Raw | None:
    """Keep the numbers and booleans among the answered values."""
    if bytes(value).count(b",") > MAX_PARTS:
        return None
    try:
        members = _read_members(value)
    except msgspec.ValidationError:
        return None
    return msgspec.Raw(_write({name: kept for name, kept in members.items() if _number(plan, kept, {}, job)}))


def _redacted(_: _Plan, value: msgspec.Raw, siblings: _Members, job: _Job) -> msgspec.Raw | None:
    """Pass every string in the value, names included, through the redaction pipeline."""
    redact = job.redact
    job.redacted_bytes += len(value)
    if redact is None or job.redacted_bytes > MAX_REDACTED_BYTES:
        return None

    def replace(match: re.Match[bytes]) -> bytes:
        name, gap, spelled = match.groups(default=b"")
        job.redacted_bytes += _MEMBER_BYTES if name else _STRING_BYTES
        if job.redacted_bytes > MAX_REDACTED_BYTES:
            return b""
        if not name:
            return _redact_string(spelled, redact)
        return _redact_string(name, redact) + gap + _redact_member(name, spelled, redact)

    redacted = _STRINGS.sub(replace, bytes(value))
    return msgspec.Raw(redacted) if job.redacted_bytes <= MAX_REDACTED_BYTES else None


def _redact_string(spelled: bytes, redact: Redact) -> bytes:
    text = _read_string(spelled)
    redacted = redact(text)
    return spelled if redacted == text else _write(redacted)


def _redact_member(name: bytes, spelled: bytes, redact: Redact) -> bytes:
    """Redact a string as what is assigned to its name: ``{"password": "x"}`` says no less than
    ``password=x``."""
    key, quoted = _read_string(name), spelled.decode()
    prefix = f"{redact(key)}="
    # In its quotes: the value is all that stands between them, however many words that is.
    assigned = redact(f"{key}={quoted}")
    if assigned == prefix + quoted:
        return _redact_string(spelled, redact)
    rest = assigned.removeprefix(prefix)
    try:
        return _redact_string(_write(_read_string(rest)), redact)
    except msgspec.DecodeError:
        return _write(redact(rest))


def _is_string(value: msgspec.Raw) -> bool:
    return bytes(value).startswith(b'"')


_DROP: Final = _Plan(_drop)
_NUMBER: Final = _Plan(_number)
_WHOLE: Final = (_drop, _redacted, _number)
"""What these do to a field they do to all below it."""

_STRUCTURAL_RULES: Final[Mapping[str, _Rule]] = {"prompt": _prompt, "label": _label, "values": _numbers}
"""How the fields marked as exceptions are degraded below ``redacted``, by name."""


def _members_plan(fields: Mapping[tuple[str, ...], Field], level: Capture) -> dict[str, _Plan]:
    """Return the plans of the members that ``fields`` names by path and that need something done at
    ``level``."""
    below: dict[str, dict[tuple[str, ...], Field]] = {}
    for path, listed in fields.items():
        if path:
            below.setdefault(path[0], {})[path[1:]] = listed
    plans = {name: _field_plan(name, paths, level) for name, paths in below.items()}
    return {name: plan for name, plan in plans.items() if plan is not None}


def _field_plan(name: str, paths: Mapping[tuple[str, ...], Field], level: Capture) -> _Plan | None:
    listed = paths.get((), Field(Capture.METADATA))
    if listed.level > level:
        return _DROP
    if level == Capture.REDACTED and (listed.exception or listed.level == level):
        return _Plan(_redacted)
    if listed.exception:
        return _Plan(_STRUCTURAL_RULES[name])
    members = _members_plan(paths, level)
    return _Plan(_array if _ITEMS in members else _object, members) if members else None


def _plan(fields: Mapping[str, Field], level: Capture) -> _Plan:
    """Return the plan for a registered type's payload."""
    paths = {tuple(path.replace(_ITEMS, "." + _ITEMS).split(".")): listed for path, listed in fields.items()}
    return _Plan(_object, _members_plan(paths, level))


_PLANS: Final[Mapping[int, Mapping[str, _Plan]]] = {
    int(level): {type_: _plan(fields, level) for type_, fields in TYPES.items()}
    for level in (Capture.METADATA, Capture.REDACTED)
} | {int(Capture.NONE): {}}
"""The payload plans by level and type; a type that is not here loses its payload."""
