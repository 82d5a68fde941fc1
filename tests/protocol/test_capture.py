"""Down-leveling, case by case: what goes, what stays as it is spelled, what is said instead."""

from __future__ import annotations

import json
from typing import Any

import pytest

from aep_relay.protocol.capture import MAX_PARTS, MAX_REDACTED_BYTES, downlevel
from aep_relay.protocol.event import Event, decode
from aep_relay.protocol.redaction import Redactor
from aep_relay.protocol.registry import CAPTURE_RANK, CAPTURES
from tests.protocol.samples import MINIMAL, text

NONE, METADATA, REDACTED, FULL = range(4)
PLAIN = {name: value for name, value in MINIMAL.items() if name not in ("type", "seq")}


def event(type_: str, data: object, capture: str = "full", **more: object) -> Event:
    """An Event of this type with this payload, its scope as the type asks."""
    foreign = type_ in ("attention.routed", "control.attention.respond", "control.cancel")
    members: dict[str, object] = PLAIN | {"type": type_} | ({} if foreign else {"seq": 3}) | more
    if type_.startswith("agent."):
        members = {name: value for name, value in members.items() if name not in ("session", "seq")}
    return decode(text(members | {"capture": capture, "data": data}))


def at(level: int, source: Event) -> dict[str, Any]:
    """The Event's members at a ceiling."""
    found = json.loads(downlevel(source, level))
    assert isinstance(found, dict)
    return found


def hide(value: str) -> str:
    return value.replace("secret", "[hidden]")


@pytest.mark.parametrize("capture", CAPTURES)
@pytest.mark.parametrize("ceiling", range(4))
def test_never_up_and_untouched_where_nothing_is_asked(capture: str, ceiling: int) -> None:
    source = event("tool.completed", {"result": "x"}, capture)
    if ceiling >= CAPTURE_RANK[capture]:
        assert downlevel(source, ceiling) is source.raw
        assert source.variants is None
    else:
        expected = METADATA if ceiling == REDACTED else ceiling
        assert at(ceiling, source)["capture"] == CAPTURES[expected]


TOOL = {
    "tool": {"name": "Bash", "call_id": "t"},
    "args": {"command": "rm"},
    "args_redacted": {"command": "secret rm"},
    "args_digest": "ab",
    "unlisted": {"args": "kept", "deep": [1, {"result": "kept"}]},
}


def test_fields_above_the_ceiling_go() -> None:
    source = event("tool.requested", TOOL)
    assert at(METADATA, source)["data"] == {n: TOOL[n] for n in ("tool", "args_digest", "unlisted")}
    assert "data" not in at(NONE, source)


def test_a_redacted_ceiling_on_full_content_is_metadata() -> None:
    source = event("tool.requested", TOOL)
    assert downlevel(source, REDACTED) == downlevel(source, METADATA)
    assert downlevel(event("tool.requested", TOOL, "redacted"), REDACTED).endswith(b"}}")


def test_a_redacting_relay_keeps_what_it_redacted() -> None:
    found = json.loads(downlevel(event("tool.requested", TOOL), REDACTED, hide))
    assert found["capture"] == "redacted"
    kept = {n: TOOL[n] for n in ("tool", "args_digest", "unlisted")} | {
        "args_redacted": {"command": "[hidden] rm"}
    }
    assert found["data"] == kept


def test_redaction_leaves_lower_ceilings_alone() -> None:
    source = event("tool.requested", TOOL)
    assert downlevel(source, METADATA, hide) == downlevel(event("tool.requested", TOOL), METADATA)
    assert downlevel(source, FULL, hide) is source.raw


def test_a_text_is_made_once_for_each_level() -> None:
    source = event("tool.requested", TOOL)
    assert downlevel(source, METADATA) is downlevel(source, METADATA) is downlevel(source, REDACTED)
    assert downlevel(source, REDACTED, hide) is downlevel(source, REDACTED, hide)
    assert source.variants is not None
    assert sorted(source.variants) == [METADATA, REDACTED]


def test_envelope_members_keep_their_order_and_spelling() -> None:
    raw = (
        '{ "data" : {"result": 1, "duration_ms" : 1.50 }, "acmeregion":"eu-1", "seq":1e2,\n "capture":"full",'
        '"count":7.0,"aep":"0.1","id":"e","type":"tool.completed","time":"2026-07-03T10:15:04Z",'
        '"source":"a:b","agent":"x \\u00e9","session":"s" }'
    )
    expected = (
        '{"data":{"duration_ms":1.50},"acmeregion":"eu-1","seq":1e2,"capture":"metadata","count":7.0,'
        '"aep":"0.1","id":"e","type":"tool.completed","time":"2026-07-03T10:15:04Z","source":"a:b",'
        '"agent":"x \\u00e9","session":"s"}'
    )
    assert downlevel(decode(raw.encode()), METADATA).decode() == expected


def test_an_absent_capture_is_stated_once_it_is_lowered() -> None:
    members = PLAIN | {"type": "tool.completed", "seq": 3, "data": {"status": "x"}}
    source = decode(text(members))
    assert downlevel(source, METADATA) is source.raw
    assert at(NONE, source) == {name: value for name, value in members.items() if name != "data"} | {
        "capture": "none"
    }


def test_an_event_without_data_stays_without() -> None:
    source = decode(text(PLAIN | {"type": "attention.requested", "seq": 3, "capture": "full"}))
    for ceiling in (NONE, METADATA):
        assert "data" not in at(ceiling, source)


@pytest.mark.parametrize(
    "type_", ["tool.made_up", "x.acme.foo.bar", "message.user.submitted", "message.agent.replied"]
)
def test_types_without_a_schema_lose_their_payload(type_: str) -> None:
    source = event(type_, {"text": "secret"})
    assert "data" not in at(METADATA, source)
    assert "data" not in json.loads(downlevel(source, REDACTED, hide))
    assert downlevel(source, FULL) is source.raw


@pytest.mark.parametrize("type_", ["control.accepted", "session.ended", "agent.heartbeat"])
def test_types_without_gated_fields_keep_their_payload(type_: str) -> None:
    assert at(METADATA, event(type_, {"x": [1, "y"]}))["data"] == {"x": [1, "y"]}


NESTED: list[tuple[str, object, object]] = [
    ("tool.failed", {"error": {"type": "io", "message": "s"}}, {"error": {"type": "io"}}),
    ("tool.failed", {"error.type": "io", "error.message": "s"}, {"error.type": "io"}),
    ("tool.failed", {"error": "s"}, {}),
    ("tool.failed", {"error": ["s"]}, {}),
    ("tool.failed", {"error": None}, {}),
    (
        "tool.failed",
        {"error": {"message": {"deep": "s"}, "more": {"message": "kept"}}},
        {"error": {"more": {"message": "kept"}}},
    ),
    ("tool.failed", {"error": {"message.text": "s"}}, {"error": {}}),
    ("tool.failed", {"error.message.text": "s"}, {}),
    (
        "tool.failed",
        {"problem": "kept", "error.": "kept", ".error": "kept"},
        {"problem": "kept", "error.": "kept", ".error": "kept"},
    ),
    ("tool.requested", {"args": None, "args.command": "s", "args[0]": "s", "argsy": 1}, {"argsy": 1}),
    ("run.started", {"cost": "kept", "gen_ai": "kept", "prompt": 5}, {"cost": "kept", "gen_ai": "kept"}),
    ("run.started", {"gen_ai.usage.input_tokens": 9, "prompt": "s"}, {"gen_ai.usage.input_tokens": 9}),
    (
        "assessment.evaluation.recorded",
        {"gen_ai.evaluation.name": "n", "gen_ai.evaluation.explanation": "s"},
        {"gen_ai.evaluation.name": "n"},
    ),
    (
        "assessment.evaluation.recorded",
        {"gen_ai": {"evaluation": {"name": "n", "explanation": "s"}}},
        {"gen_ai": {"evaluation": {"name": "n"}}},
    ),
    ("assessment.evaluation.recorded", {"gen_ai": {"evaluation.explanation": "s"}}, {"gen_ai": {}}),
    (
        "assessment.evaluation.recorded",
        {"gen_ai.evaluation": {"explanation": "s"}},
        {"gen_ai.evaluation": {}},
    ),
    ("assessment.evaluation.recorded", {"gen_ai": "s"}, {}),
    (
        "resource.retrieval.returned",
        {
            "documents": [
                {"id": "d", "content": "s", "content_redacted": "s", "metadata": {"content": "kept"}}
            ]
        },
        {"documents": [{"id": "d", "metadata": {"content": "kept"}}]},
    ),
    (
        "resource.retrieval.returned",
        {"documents": ["s", None, 1, ["s"], {"content": "s"}]},
        {"documents": [{}]},
    ),
    ("resource.retrieval.returned", {"documents": {"content": "s"}}, {}),
    (
        "resource.retrieval.returned",
        {"documents.content": "s", "documents.0.content": "s", "documents[0].content": "s"},
        {},
    ),
    ("resource.retrieval.returned", {"documents[0]": {"content": "s"}, "documents[]": {"content": "s"}}, {}),
    (
        "resource.citation.recorded",
        {
            "citations": [
                {
                    "source": {"id": "i", "uri": "s", "title": "s"},
                    "cited_text": "s",
                    "offset": {"char": {"start": 1}},
                }
            ]
        },
        {"citations": [{"source": {"id": "i"}, "offset": {"char": {"start": 1}}}]},
    ),
    (
        "resource.citation.recorded",
        {"citations": [{"source": "s"}, {"source.uri": "s"}]},
        {"citations": [{}, {}]},
    ),
    ("state.snapshot", {"state": {"a": "s"}, "key": "k"}, {"key": "k"}),
    ("agent.health", {"status": "ok", "detail": "s"}, {"status": "ok"}),
    ("control.cancel", {"scope": "run", "reason": "s"}, {"scope": "run"}),
]


@pytest.mark.parametrize(("type_", "data", "kept"), NESTED)
def test_nothing_above_the_ceiling_is_left_in_any_place(type_: str, data: object, kept: object) -> None:
    for capture in ("redacted", "full"):
        assert at(METADATA, event(type_, data, capture))["data"] == kept


def test_a_doubled_member_of_the_payload_hides_nothing() -> None:
    source = event("run.started", {})
    raw = source.raw.replace(b'"data":{}', b'"data":{"prompt":"s","trigger":"user","pr\\u006fmpt":"s"}')
    assert at(METADATA, decode(raw))["data"] == {"trigger": "user"}


OPTIONS = [{"id": "allow", "label": "Allow it"}, {"id": "deny", "label": "No", "hint": 1}]
ATTENTION: list[tuple[dict[str, object], object, object]] = [
    (
        {"subject": "Bash"},
        {"kind": "permission", "prompt": "s"},
        {"kind": "permission", "prompt": "bot requests permission: Bash"},
    ),
    ({}, {"kind": "permission", "prompt": "s"}, {"kind": "permission", "prompt": "bot requests permission"}),
    ({"subject": "Bash"}, {"prompt": "s"}, {"prompt": "bot requests attention: Bash"}),
    ({}, {"kind": 5, "prompt": "s"}, {"kind": 5, "prompt": "bot requests attention"}),
    ({}, {"kind": "", "prompt": ["s"]}, {"kind": "", "prompt": "bot requests attention"}),
    ({}, {"kind": "form"}, {"kind": "form"}),
    ({}, {"prompt.text": "s", "context": {"s": 1}}, {}),
    (
        {},
        {"options": OPTIONS},
        {"options": [{"id": "allow", "label": "allow"}, {"id": "deny", "label": "deny", "hint": 1}]},
    ),
    (
        {},
        {"options": [{"id": "a"}, {"label": "s"}, {"id": 1, "label": "s"}, {"id": None, "label": "s"}]},
        {"options": [{"id": "a"}, {}, {"id": 1}, {"id": None}]},
    ),
    ({}, {"options": 5, "fields": "s"}, {}),
    ({}, {"options": [None, 1, "s", [{"label": "s"}]], "fields": [None]}, {"options": [], "fields": []}),
    ({}, {"options": {"label": "s"}, "fields": None}, {}),
    ({}, {"options.label": "s", "fields.0.label": "s", "options[0].label": "s"}, {}),
    (
        {},
        {
            "fields": [
                {
                    "id": "f",
                    "type": "select",
                    "label": "s",
                    "choices": [{"id": "1", "label": "s"}, 2],
                    "min": 1,
                }
            ]
        },
        {
            "fields": [
                {"id": "f", "type": "select", "label": "f", "choices": [{"id": "1", "label": "1"}], "min": 1}
            ]
        },
    ),
    ({}, {"fields": [{"id": "f", "choices": 5, "choices.label": "s"}]}, {"fields": [{"id": "f"}]}),
    (
        {},
        {"respond_via": ["control"], "expires_at": "t", "note": "kept"},
        {"respond_via": ["control"], "expires_at": "t", "note": "kept"},
    ),
]


@pytest.mark.parametrize(("envelope", "data", "kept"), ATTENTION)
def test_attention_requests_are_said_structurally(
    envelope: dict[str, object], data: object, kept: object
) -> None:
    for capture in ("redacted", "full"):
        source = event("attention.requested", data, capture, agent="bot", **envelope)
        assert at(METADATA, source)["data"] == kept


ANSWERS: list[tuple[object, object]] = [
    (
        {"answer": {"option": "allow", "text": "s"}, "via": "control"},
        {"answer": {"option": "allow"}, "via": "control"},
    ),
    (
        {
            "answer": {
                "values": {
                    "n": 1,
                    "f": -1.50,
                    "t": True,
                    "x": False,
                    "s": "s",
                    "a": ["s"],
                    "o": {"s": 1},
                    "z": None,
                }
            }
        },
        {"answer": {"values": {"n": 1, "f": -1.5, "t": True, "x": False}}},
    ),
    ({"answer": {"values": "s"}}, {"answer": {}}),
    ({"answer": {"values": [1, "s"]}}, {"answer": {}}),
    ({"answer": "s"}, {}),
    ({"answer.values": {"n": 1, "s": "s"}, "answer.text": "s"}, {"answer.values": {"n": 1}}),
    ({"answer.values.n": 1, "answer.values.s": "s", "answer.values.o": {"x": "s"}}, {"answer.values.n": 1}),
    ({"answer": {"values.s": "s", "values.n": 1}}, {"answer": {"values.n": 1}}),
    ({"answer.values.n.m": 1, "answer.values.s.t": "s"}, {"answer.values.n.m": 1}),
]


@pytest.mark.parametrize("type_", ["attention.answered", "control.attention.respond"])
@pytest.mark.parametrize(("data", "kept"), ANSWERS)
def test_answers_keep_numbers_and_booleans(type_: str, data: object, kept: object) -> None:
    assert at(METADATA, event(type_, data, "redacted"))["data"] == kept


def test_other_events_may_have_members_of_those_names() -> None:
    data = {"options": 5, "values": {"a": "x"}, "label": "x"}
    assert at(METADATA, event("tool.completed", data))["data"] == data


def test_a_redacting_relay_redacts_real_text_in_exception_fields() -> None:
    data = {
        "kind": "secret kind",
        "prompt": "a secret",
        "options": [{"id": "secret", "label": "secret one"}, "secret"],
        "fields": [{"id": "f", "label": "secret", "choices": [{"id": "c", "label": "secret"}]}],
        "context": {"x": 1},
    }
    found = json.loads(downlevel(event("attention.requested", data), REDACTED, hide))
    assert found["data"] == {
        "kind": "secret kind",
        "prompt": "a [hidden]",
        "options": [{"id": "secret", "label": "[hidden] one"}],
        "fields": [{"id": "f", "label": "[hidden]", "choices": [{"id": "c", "label": "[hidden]"}]}],
    }


def test_redaction_reaches_every_string_and_leaves_the_rest_as_spelled() -> None:
    state = (
        '{"a": "secret", "secret" : [ 1.50, 1e999, "x \\u0073ecret \\ud83d\\ude00", {"\\"secret\\\\":null} ],'
        '"plain\\u00e9":"\\u00e9", "s":["secret"]}'
    )
    raw = event("state.snapshot", {}).raw.replace(
        b'"data":{}', b'"data":{"key":"secret","state":' + state.encode() + b"}"
    )
    found = downlevel(decode(raw), REDACTED, hide).decode()
    assert found.endswith(
        '"data":{"key":"secret","state":{"a": "[hidden]", "[hidden]" : [ 1.50, 1e999, "x [hidden] \U0001f600",'
        ' {"\\"[hidden]\\\\":null} ],"plain\\u00e9":"\\u00e9", "s":["[hidden]"]}}}'
    )


def test_redaction_reaches_dotted_names_too() -> None:
    data = {"state.note": "a secret", "state[0]": ["secret"], "answer": 1}
    found = json.loads(downlevel(event("state.snapshot", data), REDACTED, hide))
    assert found["data"] == {"state.note": "a [hidden]", "state[0]": ["[hidden]"], "answer": 1}


def test_a_secret_may_be_assigned_by_its_name() -> None:
    def assignments(value: str) -> str:
        name, sign, _ = value.partition("=")
        return f"{name}=[hidden]" if sign and name == "password" else value

    data = {"state": {"password": "hunter2", "user": "bob", "n": ["password", "hunter2"], "password2": "x"}}
    found = json.loads(downlevel(event("state.snapshot", data), REDACTED, assignments))
    assert found["data"]["state"] == data["state"] | {"password": "[hidden]"}


def test_text_that_takes_too_long_to_redact_goes() -> None:
    short, long = "token=a " * 1000, "token=a " * (MAX_REDACTED_BYTES // 8 + 1)
    data = {"state": short, "trigger": 1}
    found = json.loads(downlevel(event("state.snapshot", data), REDACTED, Redactor()))
    assert found["data"]["state"].startswith("token=[REDACTED:secret]")
    found = json.loads(downlevel(event("state.snapshot", data | {"state": long}), REDACTED, Redactor()))
    assert found["data"] == {"trigger": 1}
    assert found["capture"] == "redacted"


@pytest.mark.parametrize(("named", "fits", "most_calls"), [(False, 2100, 2400), (True, 750, 4 * 900)])
def test_very_many_short_texts_take_as_long_as_a_long_one(named: bool, fits: int, most_calls: int) -> None:
    """A name and its value take four: both by themselves, the two together, and what becomes of the name."""

    def redacted(count: int) -> tuple[bool, int]:
        calls: list[str] = []

        def noted(text: str) -> str:
            calls.append(text)
            return text

        texts = [str(number) for number in range(1000, 1000 + count)]
        data = {"state": dict.fromkeys(texts, "x") if named else texts, "trigger": 1}
        found = json.loads(downlevel(event("state.snapshot", data), REDACTED, noted))
        return "state" in found["data"], len(calls)

    assert redacted(fits)[0]
    kept, calls = redacted(3000)
    assert not kept
    assert calls <= most_calls


@pytest.mark.parametrize(
    ("member", "kept"),
    [
        ({"password": "two words"}, {"password": "[REDACTED:secret]"}),
        ({"password": "my a@example.org pass"}, {"password": "[REDACTED:secret]"}),
        ({"secret": 'a"b c'}, {"secret": "[REDACTED:secret]"}),
        ({"api_key": "línea uno"}, {"api_key": "[REDACTED:secret]"}),
        ({"note": 'hello "q" world'}, {"note": 'hello "q" world'}),
        ({"note": "to a@example.org"}, {"note": "to [REDACTED:pii]"}),
        ({"password": ""}, {"password": ""}),
    ],
)
def test_a_secret_value_is_hidden_whole(member: dict[str, str], kept: dict[str, str]) -> None:
    found = json.loads(downlevel(event("state.snapshot", {"state": member}), REDACTED, Redactor()))
    assert found["data"]["state"] == kept


@pytest.mark.parametrize(
    ("type_", "data", "field"),
    [
        ("attention.requested", {"options": [{"id": "a"}] * (MAX_PARTS + 1) + [{"id": "a"}]}, "options"),
        ("attention.answered", {"answer": {"values": {f"n{i}": 1 for i in range(MAX_PARTS + 2)}}}, "answer"),
    ],
)
def test_what_takes_too_long_to_classify_goes(type_: str, data: dict[str, object], field: str) -> None:
    found = at(METADATA, event(type_, {**data, "kept": 1}))["data"]
    assert found["kept"] == 1
    assert found.get(field, {}) == {}


@pytest.mark.parametrize("prefix", ["tool.n", "n"])
def test_too_many_members_take_the_payload_with_them(prefix: str) -> None:
    paths = {f"{prefix}{number}": 1 for number in range(MAX_PARTS)}
    assert len(at(METADATA, event("tool.requested", paths))["data"]) == MAX_PARTS
    assert "data" not in at(METADATA, event("tool.requested", paths | {"a.b": 1}))


def test_a_path_is_followed_as_far_as_fields_go() -> None:
    name = "args" + "." * 1_000_000
    assert at(METADATA, event("tool.requested", {name: 1, "." * 1_000_000: 2}))["data"] == {
        "." * 1_000_000: 2
    }
