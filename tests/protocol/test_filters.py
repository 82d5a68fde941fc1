"""The attr-match dialect: what it accepts, what it matches, and its normal form."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aep_relay.protocol.errors import FilterTooLarge, InvalidFilter, InvalidParameter
from aep_relay.protocol.event import Event, decode
from aep_relay.protocol.filters import (
    EMPTY,
    MAX_ELEMENTS,
    MAX_FILTER_CHARS,
    MAX_INCLUSION_ELEMENTS,
    MAX_PREDICATES,
    Filter,
    parse,
    parse_json,
)
from aep_relay.protocol.registry import CAPTURES, SEVERITIES
from tests.protocol.samples import MINIMAL, text


def event(**members: object) -> Event:
    """An Event with these attributes and the scope its type asks for."""
    type_ = str(members.get("type", "run.started"))
    found = MINIMAL | {"type": type_}
    if type_.startswith("agent."):
        found = {name: value for name, value in found.items() if name not in ("session", "seq")}
    return decode(text(found | members))


MATCHES: list[tuple[str, dict[str, object], dict[str, object], bool]] = [
    ("category pattern", {"type": ["attention.*"]}, {"type": "attention.requested"}, True),
    ("other category", {"type": ["attention.*"]}, {"type": "tool.completed"}, False),
    ("exact type", {"type": "tool.completed"}, {"type": "tool.completed"}, True),
    ("exact type is whole", {"type": "tool.completed"}, {"type": "tool.completed.late"}, False),
    ("vendor pattern", {"type": ["x.acme.*"]}, {"type": "x.acme.foo.bar"}, True),
    ("other vendor", {"type": ["x.acme.*"]}, {"type": "x.acme2.foo.bar"}, False),
    ("every vendor", {"type": "x.*"}, {"type": "x.acme.foo.bar"}, True),
    ("deeper pattern", {"type": "run.step.*"}, {"type": "run.step.started"}, True),
    ("a pattern wants its dot", {"type": "run.step.*"}, {"type": "run.step"}, False),
    ("a pattern is no substring", {"type": "run.st.*"}, {"type": "run.step.started"}, False),
    ("pattern or type", {"type": ["tool.*", "run.started"]}, {"type": "run.started"}, True),
    ("severity at least, declared", {"severity": {"gte": "notice"}}, {"severity": "notice"}, True),
    ("severity at least, default", {"severity": {"gte": "notice"}}, {}, False),
    ("severity band, default", {"severity": {"gte": "debug", "lte": "info"}}, {}, True),
    ("severity at most", {"severity": {"lte": "warning"}}, {"severity": "error"}, False),
    (
        "severity band upside down",
        {"severity": {"gte": "error", "lte": "info"}},
        {"severity": "notice"},
        False,
    ),
    ("severity equality", {"severity": "info"}, {}, True),
    ("severity inclusion", {"severity": ["error", "debug"]}, {"severity": "debug"}, True),
    ("severity is no number", {"severity": 1}, {}, False),
    ("severity unheard of", {"severity": "fatal"}, {"severity": "critical"}, False),
    ("capture default", {"capture": "metadata"}, {}, True),
    ("capture declared", {"capture": ["none", "full"]}, {"capture": "full"}, True),
    ("capture other", {"capture": "full"}, {}, False),
    ("agent inclusion", {"agent": ["a", "b"]}, {"agent": "b"}, True),
    ("session other", {"session": "s"}, {"session": "s2"}, False),
    ("session equality", {"session": "s"}, {"session": "s"}, True),
    ("session case", {"session": "S"}, {"session": "s"}, False),
    ("star inside a value is a value", {"subject": "Bash(rm:*)"}, {"subject": "Bash(rm:*)"}, True),
    ("epoch default", {"epoch": 0}, {}, True),
    ("epoch default on no session", {"epoch": 0}, {"type": "agent.presence"}, True),
    ("epoch spelled otherwise", {"epoch": 1.0}, {"epoch": 1}, True),
    ("epoch inclusion", {"epoch": [1, 2]}, {"epoch": 2}, True),
    ("epoch is no string", {"epoch": "0"}, {}, False),
    ("epoch is no boolean", {"epoch": False}, {}, False),
    ("epoch large", {"epoch": 2**63 - 1}, {"epoch": 2**63 - 1}, True),
    ("epoch neighbour", {"epoch": 2**53}, {"epoch": 2**53 + 1}, False),
    ("absent attribute", {"step": "turn-3"}, {}, False),
    ("absent session", {"session": "s"}, {"type": "agent.presence"}, False),
    ("absent is not empty", {"subject": ""}, {}, False),
    ("text is no number", {"run": 1}, {"run": "1"}, False),
    ("text is no boolean", {"run": True}, {"run": "true"}, False),
    ("id", {"id": "e"}, {"id": "e"}, True),
    ("source", {"source": "a:b"}, {"source": "a:b"}, True),
    ("subject", {"subject": "x"}, {"subject": "x"}, True),
    ("cause", {"cause": "x"}, {"cause": "y"}, False),
    ("extension equality", {"acmeregion": "eu-1"}, {"acmeregion": "eu-1"}, True),
    ("extension absent", {"acmeregion": "eu-1"}, {}, False),
    ("extension another", {"acmeregion": "eu-1"}, {"other": "eu-1"}, False),
    ("empty", {}, {"type": "agent.heartbeat"}, True),
    (
        "conjunction",
        {"type": ["tool.*"], "severity": {"gte": "info"}, "agent": "codex"},
        {"type": "tool.failed", "severity": "warning", "agent": "codex"},
        True,
    ),
    (
        "conjunction broken",
        {"type": ["tool.*"], "severity": {"gte": "info"}, "agent": "codex"},
        {"type": "tool.failed", "severity": "warning", "agent": "claude"},
        False,
    ),
]


@pytest.mark.parametrize(
    ("filter_", "members", "match"), [m[1:] for m in MATCHES], ids=[m[0] for m in MATCHES]
)
def test_matching(filter_: dict[str, object], members: dict[str, object], match: bool) -> None:
    assert parse(filter_).matches(event(**members)) is match
    assert parse_json(json.dumps(filter_)).matches(event(**members)) is match


SCALARS = [1, 0, True, False, "1", "true", "", "0"]


@pytest.mark.parametrize(("wanted", "value"), list(itertools.product(SCALARS, SCALARS)))
def test_values_are_compared_without_coercion(wanted: object, value: object) -> None:
    same = type(wanted) is type(value) and wanted == value
    assert parse({"ext": wanted}).matches(event(ext=value)) is same
    assert parse({"ext": ["other", wanted]}).matches(event(ext=value)) is same


def test_an_extension_integer_has_no_spelling() -> None:
    raw = text(MINIMAL)[:-1] + b',"ext":1e2}'
    assert parse({"ext": 100}).matches(decode(raw))
    assert parse_json('{"ext":100.0}').matches(decode(raw))
    assert not parse({"ext": "1e2"}).matches(decode(raw))


INVALID: list[object] = [
    None,
    True,
    1,
    "x",
    [],
    [{}],
    {"seq": 5},
    {"data": {}},
    {"time": "2026"},
    {"aep": "0.1"},
    {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"},
    {"NotAnAttr": "y"},
    {"a.b": "y"},
    {"a_b": "y"},
    {"": "y"},
    {"a" * 21: "y"},
    {"é": "y"},
    {"Session": "y"},
    *(
        {"type": type_}
        for type_ in ("*", ".*", "tool*", "to*ol.x", "*.tool", "tool.**", "tool.*.*", "*.*", "tool.* ")
    ),
    {"type": ["tool.completed", "*"]},
    {"type": {"gte": "a"}},
    {"agent": "claude*"},
    {"agent": "*"},
    {"agent": "claude.*"},
    {"session": ["s", "t*"]},
    {"ext": "x*"},
    *({name: []} for name in ("agent", "type", "severity", "epoch", "ext")),
    *({name: None} for name in ("agent", "type", "severity", "capture", "epoch", "ext")),
    *({name: {}} for name in ("agent", "type", "severity", "capture", "epoch", "ext")),
    *({name: 1.5} for name in ("agent", "type", "severity", "capture", "epoch", "ext")),
    *({name: [[]]} for name in ("agent", "type", "severity", "ext")),
    *({name: ["x", None]} for name in ("agent", "type", "severity", "ext")),
    {"severity": {"gt": "info"}},
    {"severity": {"gte": "info", "x": 1}},
    {"severity": {"gte": "fatal"}},
    {"severity": {"gte": None}},
    {"severity": {"gte": 1}},
    {"severity": {"gte": ["info"]}},
    {"severity": [{"gte": "info"}]},
    {"capture": {"gte": "metadata"}},
    {"epoch": {"gte": 1}},
    {"epoch": float("nan")},
    {"epoch": float("inf")},
    {"session": "s", "seq": 1},
]


@pytest.mark.parametrize("value", INVALID, ids=repr)
def test_what_is_not_attr_match_is_refused(value: object) -> None:
    with pytest.raises(InvalidFilter) as caught:
        parse(value)
    assert caught.value.code == "invalid-filter"


@pytest.mark.parametrize(
    "value",
    [
        {"agent": ["x"] * (MAX_INCLUSION_ELEMENTS + 1)},
        {f"x{number}": 1 for number in range(MAX_PREDICATES + 1)},
        {f"x{number}": ["x"] * (MAX_ELEMENTS // 8) for number in range(8)} | {"agent": ["a"]},
    ],
    ids=["elements", "members", "elements in all"],
)
def test_limits_are_limits(value: dict[str, object]) -> None:
    with pytest.raises(FilterTooLarge) as caught:
        parse(value)
    assert caught.value.code == "limit-exceeded"


def test_what_is_within_the_limits_is_accepted() -> None:
    parse({"agent": [str(number) for number in range(MAX_INCLUSION_ELEMENTS)]})
    parse({f"x{number}": 1 for number in range(MAX_PREDICATES)})
    parse({f"x{number}": ["x"] * (MAX_ELEMENTS // 8) for number in range(8)} | {"agent": "a"})
    longest = json.dumps({"agent": ""})
    parse_json(longest.replace('""', '"' + "a" * (MAX_FILTER_CHARS - len(longest)) + '"'))


@pytest.mark.parametrize(
    "parameter",
    [
        "",
        "x",
        "null",
        "[]",
        '{"agent":"a"',
        '{"agent":"a","agent":"a"}',
        '{"agent":"a","\\u0061gent":"b"}',
        '{"severity":{"gte":"info","gte":"error"}}',
        '{"seq":1}',
        '{"epoch":1.5}',
        '{"agent":"\\ud800"}',
        '{"epoch":1e999999999}',
        '{"agent":' + "[" * 100_000,
        json.dumps({"agent": "a" * MAX_FILTER_CHARS}),
    ],
)
def test_a_malformed_parameter_is_named(parameter: str) -> None:
    with pytest.raises(InvalidParameter) as caught:
        parse_json(parameter)
    assert caught.value.parameter == "filter"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"agent": "a"}, {"agent": ["a"]}),
        ({"agent": ["a", "b", "a"]}, {"agent": ["b", "a"]}),
        ({"agent": "a", "run": "r"}, {"run": "r", "agent": "a"}),
        ({"severity": "error"}, {"severity": {"gte": "error", "lte": "error"}}),
        ({"severity": {"gte": "error"}}, {"severity": ["critical", "error"]}),
        ({"severity": {"gte": "debug"}}, {}),
        ({"severity": list(SEVERITIES)}, {}),
        ({"capture": list(CAPTURES)}, {}),
        ({"epoch": 1}, {"epoch": [1.0, 1]}),
        ({"type": ["tool.*", "tool.completed"]}, {"type": "tool.*"}),
        ({"type": ["x.acme.*", "x.*", "x.acme.y.*"]}, {"type": ["x.*"]}),
        ({"type": ["b.*", "a", "a.*"]}, {"type": ["a", "a.*", "b.*"]}),
        ({"ext": [1, True, "1"]}, {"ext": ["1", 1, True]}),
        ({"session": ["s", 5]}, {"session": "s"}),
    ],
)
def test_spelling_does_not_matter(one: dict[str, object], other: dict[str, object]) -> None:
    assert parse(one) == parse(other)
    assert parse(one).key == parse(other).key
    assert hash(parse(one)) == hash(parse(other))


DISTINCT: list[dict[str, object]] = [
    {},
    {"agent": "a"},
    {"agent": "b"},
    {"agent": ["a", "b"]},
    {"session": "a"},
    {"ext": 1},
    {"ext": True},
    {"ext": "1"},
    {"ext": "true"},
    {"type": "tool"},
    {"type": "tool.*"},
    {"type": ["tool", "tool.*"]},
    {"type": "tool."},
    {"type": 5},
    {"severity": "info"},
    {"capture": "metadata"},
    {"epoch": 0},
    {"epoch": "0"},
    {"epoch": [1, 11]},
    {"epoch": 111},
    {"agent": 'a", "b'},
]


def test_different_filters_have_different_keys() -> None:
    keys = [parse(value).key for value in DISTINCT]
    assert len(set(keys)) == len(keys)
    assert parse({"agent": "a"}) != "a"


def test_the_empty_filter() -> None:
    assert parse({}) == EMPTY
    assert (EMPTY.sessions, EMPTY.agents, EMPTY.types, EMPTY.prefixes) == (None, None, None, ())
    assert EMPTY.matcher_without(None) is None
    assert EMPTY.matcher_without("type") is None
    assert EMPTY.matches(event())


def test_what_an_index_needs() -> None:
    found = parse(
        {"session": ["s", "t"], "agent": "a", "type": ["x.*", "tool.done", "run.*"], "severity": "info"}
    )
    assert found.sessions == frozenset({"s", "t"})
    assert found.agents == frozenset({"a"})
    assert found.types == frozenset({"tool.done"})
    assert found.prefixes == ("run.", "x.")
    nothing = parse({"session": 5, "agent": True, "type": 1})
    assert (nothing.sessions, nothing.agents, nothing.types, nothing.prefixes) == (
        frozenset(),
        frozenset(),
        frozenset(),
        (),
    )
    assert parse({"type": "x.*"}).types == frozenset()


def test_the_test_that_is_left() -> None:
    both = parse({"session": "s", "type": "tool.*"})
    without = both.matcher_without("session")
    assert without is not None
    assert without(event(session="other", type="tool.done"))
    assert not without(event(session="s", type="run.done"))
    assert both.matcher_without("agent") is not None
    assert parse({"session": "s"}).matcher_without("session") is None
    alone = parse({"session": "s"}).matcher_without("type")
    assert alone is not None
    assert alone(event(session="s"))


words = st.sampled_from(["a", "b", "1", "true", "tool.done", "x.acme.y.z", "info", "error", "none", "full"])
scalars = words | st.integers(0, 2) | st.booleans()
patterns = st.sampled_from(["tool.*", "x.*", "x.acme.*", "to.*", "tool.done.*"])
predicates = scalars | st.lists(scalars, min_size=1, max_size=3)
levels = st.sampled_from(SEVERITIES)
filters = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(("id", "subject", "agent", "session", "run", "epoch", "capture", "ext"), predicates),
        "type": predicates | patterns | st.lists(patterns | words, min_size=1, max_size=3),
        "severity": predicates
        | st.fixed_dictionaries({"gte": levels}, optional={"lte": levels})
        | st.fixed_dictionaries({"lte": levels}),
    },
)
attributes = st.fixed_dictionaries(
    {"type": st.sampled_from(["tool.done", "tool.done.x", "x.acme.y.z", "x.acme2.y.z", "run.a"])},
    optional={
        **{
            name: st.sampled_from(["a", "b", "1", "true"])
            for name in ("id", "subject", "agent", "session", "run")
        },
        "epoch": st.integers(0, 2),
        "ext": st.sampled_from(["a", "1", "true"]) | st.integers(0, 2) | st.booleans(),
        "severity": levels,
        "capture": st.sampled_from(CAPTURES),
    },
)


def plainly(filter_: dict[str, object], members: dict[str, object]) -> bool:
    """AEP-0003 §6.2 word by word."""
    found = {"session": MINIMAL["session"], "agent": MINIMAL["agent"], "id": MINIMAL["id"]}
    found |= {"severity": "info", "capture": "metadata", "epoch": 0} | members
    for name, predicate in filter_.items():
        if name not in found:
            return False
        value = found[name]
        if isinstance(predicate, dict):
            rank = SEVERITIES.index(str(value))
            at_least = rank >= SEVERITIES.index(predicate.get("gte", "debug"))
            if not at_least or rank > SEVERITIES.index(predicate.get("lte", "critical")):
                return False
        elif not any(one(name, element, value) for element in listed(predicate)):
            return False
    return True


def listed(predicate: object) -> list[object]:
    return predicate if isinstance(predicate, list) else [predicate]


def one(name: str, element: object, value: object) -> bool:
    if name == "type" and isinstance(element, str) and element.endswith(".*"):
        return str(value).startswith(element[:-1])
    return type(element) is type(value) and element == value


@given(filters, attributes)
def test_filters_match_as_the_rules_say(filter_: dict[str, object], members: dict[str, object]) -> None:
    found = parse(filter_)
    candidate = event(**members)
    assert found.matches(candidate) is plainly(filter_, members)
    for name, accepted in (("session", found.sessions), ("agent", found.agents)):
        rest = found.matcher_without(name)  # type: ignore[arg-type]
        indexed = accepted is None or getattr(candidate, name) in accepted
        assert (indexed and (rest is None or rest(candidate))) is found.matches(candidate)


@given(filters)
def test_equal_filters_have_equal_keys(filter_: dict[str, object]) -> None:
    shuffled = dict(reversed(filter_.items()))
    for name, predicate in shuffled.items():
        if isinstance(predicate, list):
            shuffled[name] = [*reversed(predicate), predicate[0]]
    assert parse(shuffled) == parse(filter_)


@given(
    st.recursive(
        scalars | st.none() | st.floats(), lambda x: st.lists(x) | st.dictionaries(words, x), max_leaves=8
    )
)
def test_nothing_but_a_refusal_is_raised(value: object) -> None:
    try:
        found = parse(value)
    except InvalidFilter:
        return
    assert isinstance(found, Filter)


@pytest.mark.parametrize(
    ("value", "weight"),
    [
        ({}, 1),
        ({"severity": {"gte": "debug"}}, 1),
        ({"session": ["a", "b"], "agent": "c", "severity": "error"}, 3),
        ({"type": [f"x.a{number}.*" for number in range(40)]}, 3),
        ({f"region{number}": 1 for number in range(64)}, 64),
        ({"subject": "x" * 100_000}, 13),
    ],
)
def test_a_filter_weighs_what_it_takes_to_match(value: dict[str, object], weight: int) -> None:
    filter_ = parse(value)
    assert filter_.weight == weight
    assert filter_.narrowed("n", lambda _: True).weight == weight + 1
    assert filter_.narrowed("n", lambda _: True, 7).weight == weight + 7
