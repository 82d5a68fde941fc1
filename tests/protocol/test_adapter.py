"""What an adapter owes: ceilings, digests, redaction, safe names."""

from __future__ import annotations

import hashlib
import json
import math
import re
import struct
from typing import Any
from urllib.parse import unquote

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aep_relay.protocol.adapter import (
    MAX_NAME_CHARS,
    Adapter,
    Ceiling,
    canonical_json,
    digest,
    safe_name,
)
from aep_relay.protocol.errors import InvalidEvent
from aep_relay.protocol.event import decode
from aep_relay.protocol.redaction import Redactor

REDACT = Redactor()


def attributes(type_: str, data: object = None, **more: object) -> dict[str, object]:
    """The envelope's members as a source has them."""
    members: dict[str, object] = {
        "id": "e1",
        "type": type_,
        "time": "2026-07-03T10:14:00Z",
        "source": "aep://host/agent/a",
        "agent": "a",
        "session": "s",
        "seq": 0,
    }
    members.update(more)
    if data is not None:
        members["data"] = data
    return members


def emitted(adapter: Adapter, members: dict[str, object]) -> dict[str, Any]:
    raw = adapter.emit(members)
    assert b"\n" not in raw
    decode(raw)
    return dict(json.loads(raw))


CONTENT = {
    "tool": {"name": "Bash", "call_id": "t_1"},
    "args": {"command": "curl -H 'X-Api-Key: abc' x"},
    "args_redacted": "curl -H 'X-Api-Key: abc' x",
}


def test_the_default_ceiling_is_metadata() -> None:
    event = emitted(Adapter(), attributes("tool.requested", CONTENT))
    assert event["capture"] == "metadata"
    assert event["data"] == {"tool": CONTENT["tool"], "args_digest": digest(CONTENT["args"])}


def test_a_redacted_ceiling_keeps_what_went_through_the_pipeline() -> None:
    adapter = Adapter(Ceiling.parse("redacted", {}), REDACT)
    event = emitted(adapter, attributes("tool.requested", CONTENT))
    assert event["capture"] == "redacted"
    assert event["data"] == {
        "tool": CONTENT["tool"],
        "args_redacted": "curl -H 'X-Api-Key: [REDACTED:secret]' x",
        "args_digest": digest(CONTENT["args"]),
    }


def test_without_a_pipeline_nothing_claims_to_be_redacted() -> None:
    event = emitted(Adapter(Ceiling.parse("redacted", {})), attributes("tool.requested", CONTENT))
    assert event["capture"] == "metadata"
    assert "args_redacted" not in event["data"]


def test_a_full_ceiling_keeps_everything_and_says_so() -> None:
    event = emitted(Adapter(Ceiling.parse("full", {})), attributes("tool.requested", CONTENT))
    assert event["capture"] == "full"
    assert event["data"] == {**CONTENT, "args_digest": digest(CONTENT["args"])}


def test_what_is_less_than_the_ceiling_is_never_leveled_up() -> None:
    adapter = Adapter(Ceiling.parse("full", {}))
    event = emitted(adapter, attributes("progress.status", {"percent": 4}, capture="metadata"))
    assert event["capture"] == "metadata"
    assert event["data"] == {"percent": 4}


def test_at_none_there_is_no_payload() -> None:
    event = emitted(Adapter(Ceiling.parse("none", {})), attributes("progress.status", {"percent": 4}))
    assert event["capture"] == "none"
    assert "data" not in event


def test_a_type_that_is_not_registered_loses_its_payload_below_full() -> None:
    for type_ in ("x.acme.thing.done", "progress.unheard_of"):
        event = emitted(Adapter(), attributes(type_, {"a": 1}))
        assert event["capture"] == "metadata"
        assert "data" not in event
    keeping = Adapter(Ceiling.parse("metadata", {"x": "full"}))
    assert emitted(keeping, attributes("x.acme.thing.done", {"a": 1}))["data"] == {"a": 1}


def test_categories_have_ceilings_of_their_own() -> None:
    ceiling = Ceiling()
    assert [ceiling.of(type_) for type_ in ("attention.requested", "tool.failed", "x.attention.y.z")] == [
        2,
        1,
        1,
    ]
    ceiling = Ceiling.parse("redacted", {"tool": "none", "x": "full"})
    assert [ceiling.of(type_) for type_ in ("attention.requested", "tool.failed", "x.a.b.c")] == [2, 0, 3]


@pytest.mark.parametrize(
    ("default", "categories"), [("some", {}), ("full", {"tool": "?"}), ("full", {"tools": "none"})]
)
def test_ceilings_that_say_nothing_are_refused(default: str, categories: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="no "):
        Ceiling.parse(default, categories)


REQUEST = {
    "kind": "permission",
    "prompt": "Run: deploy --token hunter22 as bob@example.com?",
    "options": [{"id": "allow", "label": "Allow /home/bob/x"}],
    "context": {"a": 1},
}


def test_prompts_stay_readable_and_redacted_by_default() -> None:
    event = emitted(Adapter(redact=REDACT), attributes("attention.requested", REQUEST, subject="Bash"))
    assert event["capture"] == "redacted"
    assert event["data"] == {
        "kind": "permission",
        "prompt": "Run: deploy --token [REDACTED:secret] as [REDACTED:pii]?",
        "options": [{"id": "allow", "label": "Allow ~/x"}],
    }


def test_prompts_at_metadata_are_made_of_structure_alone() -> None:
    adapter = Adapter(Ceiling.parse("metadata", {}), REDACT)
    event = emitted(adapter, attributes("attention.requested", REQUEST, subject="Bash"))
    assert event["data"] == {
        "kind": "permission",
        "prompt": "a requests permission: Bash",
        "options": [{"id": "allow", "label": "allow"}],
    }


@pytest.mark.parametrize(
    ("data", "subject", "prompt"),
    [
        ({}, None, "a requests attention"),
        ({"kind": "auth"}, None, "a requests auth"),
        ({"kind": 3}, "x", "a requests attention: x"),
        ({"kind": ""}, None, "a requests attention"),
    ],
)
@pytest.mark.parametrize("level", ["metadata", "redacted", "full"])
def test_a_missing_prompt_is_synthesized(data: object, subject: str | None, prompt: str, level: str) -> None:
    more: dict[str, object] = {} if subject is None else {"subject": subject}
    adapter = Adapter(Ceiling.parse(level, {}), REDACT)
    assert emitted(adapter, attributes("attention.requested", data, **more))["data"]["prompt"] == prompt


def test_digests_are_taken_of_the_original_and_only_where_missing() -> None:
    adapter = Adapter(redact=REDACT)
    query = {"query": "password=hunter2", "corpus": "c"}
    event = emitted(adapter, attributes("resource.retrieval.requested", query))
    assert event["data"] == {"corpus": "c", "query_digest": digest("password=hunter2")}
    given_digest = {**query, "query_digest": "0" * 32}
    assert (
        emitted(adapter, attributes("resource.retrieval.requested", given_digest))["data"]["query_digest"]
        == "0" * 32
    )
    assert emitted(adapter, attributes("resource.retrieval.requested", {"corpus": "c"}))["data"] == {
        "corpus": "c"
    }


def test_a_payload_given_as_text_keeps_its_spelling() -> None:
    adapter = Adapter(Ceiling.parse("full", {}))
    raw = adapter.emit(attributes("progress.status", msgspec.Raw(b'{"percent": 1.50,\n"x": 1e400}')))
    assert b'"data":{"percent":1.50,"x":1e400}' in raw


@pytest.mark.parametrize(
    "members",
    [
        {},
        attributes("tool.requested", [1]),
        attributes("tool.requested", "x"),
        attributes("tool.requested", msgspec.Raw(b"{")),
        attributes("tool.requested", msgspec.Raw(b"[1]")),
        attributes("progress.status", msgspec.Raw(b"{")),
        attributes("nope", {}),
        attributes("progress.status", {"x": object()}),
        attributes("progress.status", seq=-1),
        attributes("progress.status", capture="loud"),
        attributes("progress.status", capture=7),
        attributes("progress.status", subject=None),
        attributes("attention.requested", None, agent=3),
        {**attributes("progress.status"), "type": 3},
    ],
)
def test_what_is_no_envelope_is_refused(members: dict[str, object]) -> None:
    with pytest.raises(InvalidEvent):
        Adapter().emit(members)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.sampled_from(
        ["tool.requested", "attention.requested", "attention.answered", "x.a.b.c", "error.raised"]
    ),
    st.dictionaries(
        st.sampled_from(["args", "args_digest", "prompt", "kind", "options", "answer", "error"]), json_values
    ),
    st.sampled_from(["none", "metadata", "redacted", "full"]),
)
def test_any_payload_is_held_to_the_ceiling(type_: str, data: dict[str, object], level: str) -> None:
    adapter = Adapter(Ceiling.parse(level, {}), REDACT)
    event = decode(adapter.emit(attributes(type_, data)))
    assert event.capture <= adapter.ceiling.default


CANONICAL: list[tuple[object, str]] = [
    (None, "null"),
    (True, "true"),
    ([], "[]"),
    ({}, "{}"),
    ((1, [2]), "[1,[2]]"),
    ({"b": 1, "a": [1, {"d": 2, "c": 3}]}, '{"a":[1,{"c":3,"d":2}],"b":1}'),
    ("\b\t\n\f\r\"\\\x00\x1f\x7fé\u2028", '"\\b\\t\\n\\f\\r\\"\\\\\\u0000\\u001f\x7fé\u2028"'),
    ({"\U0001f600": 1, "\ufb33": 2, "\u20ac": 3, "1": 4, "": 5}, '{"":5,"1":4,"€":3,"😀":1,"\ufb33":2}'),
]  # fmt: skip
# RFC 8785 appendix B: the bits of an IEEE double, and what ECMAScript writes for it.
NUMBERS = [
    ("0000000000000000", "0"),
    ("8000000000000000", "0"),
    ("0000000000000001", "5e-324"),
    ("8000000000000001", "-5e-324"),
    ("7fefffffffffffff", "1.7976931348623157e+308"),
    ("4340000000000000", "9007199254740992"),
    ("c340000000000000", "-9007199254740992"),
    ("4430000000000000", "295147905179352830000"),
    ("44b52d02c7e14af5", "9.999999999999997e+22"),
    ("44b52d02c7e14af6", "1e+23"),
    ("44b52d02c7e14af7", "1.0000000000000001e+23"),
    ("444b1ae4d6e2ef4e", "999999999999999700000"),
    ("444b1ae4d6e2ef4f", "999999999999999900000"),
    ("444b1ae4d6e2ef50", "1e+21"),
    ("3eb0c6f7a0b5ed8c", "9.999999999999997e-7"),
    ("3eb0c6f7a0b5ed8d", "0.000001"),
    ("41b3de4355555553", "333333333.3333332"),
    ("41b3de4355555555", "333333333.3333333"),
    ("becbf647612f3696", "-0.0000033333333333333333"),
    ("43143ff3c1cb0959", "1424953923781206.2"),
]


@pytest.mark.parametrize(("value", "text"), CANONICAL)
def test_canonical_json(value: object, text: str) -> None:
    assert canonical_json(value) == text.encode()


@pytest.mark.parametrize(("bits", "text"), NUMBERS)
def test_canonical_numbers(bits: str, text: str) -> None:
    (value,) = struct.unpack(">d", bytes.fromhex(bits))
    assert canonical_json(value) == text.encode()


def test_canonical_integers() -> None:
    assert canonical_json([1, -7, 2**53, 1.0, 100, 1e2]) == b"[1,-7,9007199254740992,1,100,100]"
    assert canonical_json(2**53 + 1) == b"9007199254740992"
    assert canonical_json(10**21) == b"1e+21"
    assert canonical_json(10**400) == str(10**400).encode()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, {1: 2}, b"x", {"a": {1}}])
def test_what_is_not_json_has_no_canonical_text(value: object) -> None:
    with pytest.raises(ValueError, match="not JSON"):
        canonical_json(value)


def test_nesting_is_bounded() -> None:
    deep: object = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(ValueError, match="deep"):
        canonical_json(deep)


@given(json_values)
def test_canonical_text_is_the_same_value_and_stays_the_same(value: object) -> None:
    text = canonical_json(value)
    again = json.loads(text)
    assert canonical_json(again) == text
    if not isinstance(value, (int, float)):
        return
    assert float(again) == float(value) or abs(value) > 1e308


@given(st.dictionaries(st.text(), st.integers(), max_size=6), st.randoms())
def test_order_of_members_does_not_matter(value: dict[str, int], random: Any) -> None:
    items = list(value.items())
    random.shuffle(items)
    assert digest(dict(items)) == digest(value)


def test_digest() -> None:
    assert digest({"b": 1, "a": "x"}) == hashlib.sha256(b'{"a":"x","b":1}').hexdigest()[:32]


SAFE = [
    ("s_8f2c", "s_8f2c"),
    ("A.b-c_9", "A.b-c_9"),
    (".", "%2E"),
    ("..", "%2E."),
    ("...", "%2E.."),
    (".hidden", "%2Ehidden"),
    ("-rf", "%2Drf"),
    ("", "%65mpty"),
    ("empty", "empty"),
    ("a/b", "a%2Fb"),
    ("a\\b", "a%5Cb"),
    ("../../etc/passwd", "%2E.%2F..%2Fetc%2Fpasswd"),
    ("a%2Fb", "a%252Fb"),
    ("a b\n\0", "a%20b%0A%00"),
    ("é", "%C3%A9"),
    ("\ud800", "%ED%A0%80"),
    ("~", "%7E"),
    ("x" * MAX_NAME_CHARS, "x" * MAX_NAME_CHARS),
]


@pytest.mark.parametrize(("identifier", "name"), SAFE)
def test_safe_names(identifier: str, name: str) -> None:
    assert safe_name(identifier) == name


identifiers = st.one_of(
    st.text(), st.text("./%-_aA7e\0é", max_size=6), st.text("é/x", min_size=40, max_size=200)
)


@given(identifiers)
def test_a_safe_name_is_one_component_whatever_it_names(identifier: str) -> None:
    name = safe_name(identifier)
    assert re.fullmatch(r"(?:[A-Za-z0-9._-]|%[0-9A-Fa-f]{2})+", name)
    assert name[0] not in ".-"
    assert len(name) <= MAX_NAME_CHARS
    if identifier and len(name) < MAX_NAME_CHARS - 2:
        assert unquote(name, errors="surrogatepass") == identifier


@given(identifiers, identifiers)
def test_different_identifiers_have_different_names(one: str, other: str) -> None:
    assert (safe_name(one) == safe_name(other)) == (one == other)


def test_names_too_long_differ_by_their_hash() -> None:
    start = "x" * 300
    names = {safe_name(start + str(number)) for number in range(100)}
    assert len(names) == 100
    assert {len(name) for name in names} == {MAX_NAME_CHARS}
    assert safe_name(names.pop()) != safe_name(start)
