"""The stdio dialect to AEP-0001 and back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from aep_relay.protocol.adapter import Adapter, Ceiling, digest, safe_name
from aep_relay.protocol.dialect import DialectMapper, to_stdio
from aep_relay.protocol.event import Shape
from aep_relay.protocol.event import decode as decode_aep
from aep_relay.protocol.redaction import Redactor
from aep_relay.protocol.stdio import StdioError
from aep_relay.protocol.stdio import decode as decode_stdio

MAX = 100_000
FULL = Adapter(Ceiling.parse("full", {}))


def stdio(**members: object) -> dict[str, object]:
    """A valid Event of the dialect, with a session, changed as told; ``None`` takes a member away."""
    event: dict[str, object] = {
        "aep_version": "0.1",
        "id": "evt_01",
        "type": "task.started",
        "source": "aep://host/agent/worker",
        "created_at": "2026-07-03T10:14:00Z",
        "session_id": "s",
        "payload": {"a": 1},
    }
    event.update(members)
    return {name: value for name, value in event.items() if value is not None or name == "payload"}


def mapped(mapper: DialectMapper, event: dict[str, object]) -> dict[str, Any]:
    raw = mapper.to_aep(decode_stdio(json.dumps(event).encode(), MAX))
    assert b"\n" not in raw
    decode_aep(raw)
    return dict(json.loads(raw))


def full(event: dict[str, object], **options: Any) -> dict[str, Any]:
    return mapped(DialectMapper(epoch_seed=7, adapter=FULL, **options), event)


def test_every_field_has_its_place() -> None:
    event = stdio(
        source="worker 1",
        target="t",
        topic="jobs",
        conversation_id="c",
        task_id="k",
        correlation_id="r",
        causation_id="evt_00",
        expires_at="2026-07-04T00:00:00Z",
        delivery={"mode": "once"},
        unknown="x",
    )
    assert full(event) == {
        "aep": "0.1",
        "id": "evt_01",
        "type": "x.stdio.task.started",
        "time": "2026-07-03T10:14:00Z",
        "source": "aep://stdio/worker%201",
        "agent": "worker 1",
        "session": "s",
        "epoch": 7,
        "seq": 0,
        "cause": "evt_00",
        "stdiosource": "worker 1",
        "target": "t",
        "topic": "jobs",
        "conversationid": "c",
        "taskid": "k",
        "correlationid": "r",
        "expiresat": "2026-07-04T00:00:00Z",
        "capture": "full",
        "data": {"a": 1},
    }


def test_empty_strings_count_as_absent() -> None:
    event = stdio(target="", topic="", causation_id="", task_id="", session_id="")
    assert set(full(event, session="d")) == {
        "aep", "id", "type", "time", "source", "agent", "session", "epoch", "seq", "capture", "data",
    }  # fmt: skip


TYPES = [
    ("session.started", "session.started"),
    ("session.opened", "session.opened"),
    ("tool.unheard.of_it", "tool.unheard.of_it"),
    ("task.started", "x.stdio.task.started"),
    ("event.rejected", "x.stdio.event.rejected"),
    ("agents.x", "x.stdio.agents.x"),
    ("x.acme.thing.done", "x.acme.thing.done"),
    ("x.acme", "x.stdio.x.acme"),
    ("x.stdio.a.b", "x.stdio.x.stdio.a.b"),
]


@pytest.mark.parametrize(("type_", "expected"), TYPES)
def test_types(type_: str, expected: str) -> None:
    event = stdio(type=type_)
    raw = json.dumps(full(event)).encode()
    assert json.loads(raw)["type"] == expected
    assert json.loads(to_stdio(decode_aep(raw)))["type"] == type_


AGENTS = [
    ("aep://host/agent/claude-code/session/s_1", "claude-code"),
    ("aep://host/agent/claude%20code", "claude code"),
    ("https://x.test/a/b/?q#f", "b"),
    ("https://x.test", "x.test"),
    ("https://agent/x", "x"),
    ("urn:acme:worker", "acme:worker"),
    ("aep://host/agent", "agent"),
    ("aep:", "aep:"),
    ("worker", "worker"),
    ("wörker 1", "wörker 1"),
]


@pytest.mark.parametrize(("source", "agent"), AGENTS)
def test_the_agent_is_whom_the_source_names(source: str, agent: str) -> None:
    assert full(stdio(source=source))["agent"] == agent
    assert full(stdio(source=source), agent="configured")["agent"] == "configured"


def test_sources_that_are_no_uris_stay_apart() -> None:
    sources = {
        full(stdio(source=source), agent="a")["source"] for source in ("a b", "a/b", "a%20b", ".", "..", "é")
    }
    assert len(sources) == 6


@pytest.mark.parametrize(
    ("payload", "data", "bare"),
    [
        ({"x": 1}, {"x": 1}, False),
        ({}, {}, False),
        ([1], {"payload": [1]}, True),
        ("text", {"payload": "text"}, True),
        (0, {"payload": 0}, True),
        (False, {"payload": False}, True),
        ({"payload": 1}, {"payload": 1}, False),
    ],
)
def test_payloads(payload: object, data: object, bare: bool) -> None:
    event = full(stdio(payload=payload))
    assert event["data"] == data
    assert event.get("barepayload", False) is bare
    assert json.loads(to_stdio(decode_aep(json.dumps(event).encode())))["payload"] == payload


def test_no_payload_is_no_data() -> None:
    event = full(stdio(payload=None))
    assert "data" not in event
    assert json.loads(to_stdio(decode_aep(json.dumps(event).encode())))["payload"] is None


def test_what_enters_is_held_to_the_default_ceiling() -> None:
    mapper = DialectMapper(epoch_seed=0, adapter=Adapter(redact=Redactor()))
    tool = {"tool": {"name": "Bash"}, "args": {"command": "x"}}
    event = mapped(mapper, stdio(type="tool.requested", payload=tool))
    assert event["capture"] == "metadata"
    assert event["data"] == {"tool": {"name": "Bash"}, "args_digest": digest({"command": "x"})}
    prompt = {"kind": "input", "prompt": "password=x?"}
    event = mapped(mapper, stdio(type="attention.requested", payload=prompt))
    assert event["capture"] == "redacted"
    assert event["data"]["prompt"] == "password=[REDACTED:secret]"
    assert "data" not in mapped(mapper, stdio(payload={"content": "x"}))
    # Text in the place of a payload is content, even of a type whose unlisted fields are metadata.
    event = mapped(mapper, stdio(type="progress.status", payload="content"))
    assert "data" not in event
    assert "barepayload" not in event


SHAPES = [
    ("agent.presence", Shape.AGENT),
    ("control.cancel", Shape.COMMAND),
    ("x.acme.control.go", Shape.COMMAND),
    ("attention.routed", Shape.ROUTED),
    ("control.accepted", Shape.SESSION),
    ("task.started", Shape.SESSION),
]


@pytest.mark.parametrize(("type_", "shape"), SHAPES)
def test_only_what_holds_a_position_gets_one(type_: str, shape: Shape) -> None:
    mapper = DialectMapper(epoch_seed=3, session="d", adapter=FULL)
    for session in ("s", None):
        raw = mapper.to_aep(decode_stdio(json.dumps(stdio(type=type_, session_id=session)).encode(), MAX))
        event = decode_aep(raw)
        assert event.shape is shape
        assert event.position == ((3, 0) if shape is Shape.SESSION else None)
        back = json.loads(to_stdio(event))
        if shape is Shape.AGENT:
            assert back.get("session_id") == session
        else:
            assert back["session_id"] == (session or "d")


def test_an_event_without_a_session_is_refused() -> None:
    with pytest.raises(StdioError, match="names no session") as refused:
        full(stdio(session_id=None))
    assert (refused.value.code, refused.value.event_id) == ("invalid_envelope", "evt_01")
    assert full(stdio(type="session.opened", session_id=None, payload={"session_id": "p"}))["session"] == "p"


def test_positions_count_each_session_as_it_arrives() -> None:
    mapper = DialectMapper(epoch_seed=5)
    arrived = [mapped(mapper, stdio(session_id=session)) for session in "ababb"]
    assert [(event["session"], event["epoch"], event["seq"]) for event in arrived] == [
        ("a", 5, 0), ("b", 5, 0), ("a", 5, 1), ("b", 5, 1), ("b", 5, 2),
    ]  # fmt: skip


def test_what_is_refused_spends_no_position() -> None:
    mapper = DialectMapper(epoch_seed=5, adapter=FULL)
    mapped(mapper, stdio())
    deep = json.loads("[" * 255 + "]" * 255)  # one level more than the dialect's own envelope leaves for it
    with pytest.raises(StdioError) as refused:
        mapper.to_aep(decode_stdio(json.dumps(stdio(payload=deep)).encode(), MAX))
    assert refused.value.code == "invalid_envelope"
    assert refused.value.event_id == "evt_01"
    assert mapped(mapper, stdio())["seq"] == 1


def test_long_session_names_are_remembered_by_their_hash() -> None:
    mapper = DialectMapper(epoch_seed=0)
    for number, session in enumerate(["x" * 9_000, "x" * 9_001, "x" * 9_000]):
        event = mapped(mapper, stdio(session_id=session))
        assert (event["session"], event["seq"]) == (session, number // 2)
    assert max(map(len, mapper._positions)) < 1_000


def test_a_restart_is_a_new_epoch() -> None:
    mapper = DialectMapper(epoch_seed=5)
    mapped(mapper, stdio())
    mapper.restart()
    assert (mapped(mapper, stdio())["epoch"], mapper.epoch) == (6, 6)
    mapper.restart(3)
    assert mapper.epoch == 7
    mapper.restart(1_000)
    assert mapped(mapper, stdio())["epoch"] == 1_000


@pytest.mark.parametrize("seed", [-1, 2**63])
def test_a_seed_out_of_bounds_is_refused(seed: int) -> None:
    if seed < 0:
        assert DialectMapper(epoch_seed=seed).epoch == 0
        return
    with pytest.raises(ValueError, match="epoch seed"):
        DialectMapper(epoch_seed=seed)


class Positions(RuleBasedStateMachine):
    """Against all that was ever assigned: no position twice, none lower after a higher, bounded memory."""

    def __init__(self) -> None:
        super().__init__()
        self.mapper = DialectMapper(epoch_seed=1, max_sessions=3)
        self.last: dict[str, tuple[int, int]] = {}

    @rule(session=st.sampled_from("abcdefgh"))
    def arrive(self, session: str) -> None:
        event = mapped(self.mapper, stdio(session_id=session))
        position = (event["epoch"], event["seq"])
        assert position > self.last.get(session, (-1, -1))
        self.last[session] = position
        assert len(self.mapper._positions) <= 3

    @precondition(lambda self: self.last)
    @rule(seed=st.integers(0, 9))
    def restart(self, seed: int) -> None:
        before = self.mapper.epoch
        self.mapper.restart(seed)
        assert self.mapper.epoch > before


TestPositions = Positions.TestCase
TestPositions.settings = settings(max_examples=30, stateful_step_count=40)


def test_an_aep_event_in_the_stdio_dialect() -> None:
    raw = (
        b'{"aep":"0.1","id":"e","type":"control.cancel","time":"2026-07-03T10:15:58.000Z","source":"aep://b/agent/c",'
        b'"agent":"c","session":"s","run":"r","cause":"z","capture":"redacted","severity":"notice","subject":"u",\n'
        b'"topic":"jobs","region":"eu","payload":1,"expiresat":"never","data":{"scope":"run","n":1.50}}'
    )
    line = to_stdio(decode_aep(raw))
    assert b"\n" not in line
    assert b'"n":1.50' in line
    assert json.loads(line) == {
        "aep_version": "0.1",
        "id": "e",
        "type": "control.cancel",
        "source": "aep://b/agent/c",
        "created_at": "2026-07-03T10:15:58.000Z",
        "session_id": "s",
        "causation_id": "z",
        "topic": "jobs",
        "agent": "c",
        "run": "r",
        "capture": "redacted",
        "severity": "notice",
        "subject": "u",
        "region": "eu",
        "payload": {"scope": "run", "n": 1.5},
    }


@pytest.mark.parametrize(
    ("type_", "spelled"),
    [
        ("x.claude-code.session.config_change", "x.claude_code.session.config_change"),
        ("x.9p.a._b", "x.n9p.a.n_b"),
        ("run.1st", "run.n1st"),
    ],
)
def test_types_that_the_dialect_cannot_spell(type_: str, spelled: str) -> None:
    raw = full(stdio(type="task.x")) | {"type": type_}
    line = to_stdio(decode_aep(json.dumps(raw).encode()))
    assert json.loads(line)["type"] == spelled
    assert json.loads(line)["aep_type"] == type_
    decode_stdio(line, MAX)


def test_a_source_is_restored_only_if_the_uri_bears_it_out() -> None:
    event = full(stdio(source="worker 1"))
    assert json.loads(to_stdio(decode_aep(json.dumps(event).encode())))["source"] == "worker 1"
    forged = event | {"stdiosource": "someone else"}
    assert json.loads(to_stdio(decode_aep(json.dumps(forged).encode())))["source"] == "aep://stdio/worker%201"


texts = st.text(min_size=1, max_size=8)
json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
segments = st.from_regex(r"[a-z][a-z0-9_]{0,5}", fullmatch=True)
events = st.fixed_dictionaries(
    {
        "aep_version": st.just("0.1"),
        "id": texts,
        "type": st.builds(
            lambda first, rest: ".".join([first, *rest]),
            st.sampled_from(["task", "session", "tool", "control", "attention", "x", "x.stdio", "event"]),
            st.lists(segments, min_size=1, max_size=3),
        ),
        "source": texts | st.sampled_from(["aep://h/agent/a", "urn:x", "http://[::1]/a?b#c"]),
        "created_at": st.just("2026-07-03T10:14:00Z"),
        "session_id": texts,
        "payload": json_values,
    },
    optional=dict.fromkeys(
        ("target", "topic", "conversation_id", "task_id", "correlation_id", "causation_id"), texts
    )
    | {"expires_at": st.just("2026-07-04T00:00:00Z")},
)


@given(events)
def test_there_and_back_changes_nothing(event: dict[str, object]) -> None:
    raw = DialectMapper(epoch_seed=0, adapter=FULL).to_aep(decode_stdio(json.dumps(event).encode(), MAX))
    back = json.loads(to_stdio(decode_aep(raw)))
    derived = {"args_digest", "result_digest", "query_digest", "prompt"}
    if isinstance(event["payload"], dict) and isinstance(back["payload"], dict):
        for name in derived - set(event["payload"]):
            back["payload"].pop(name, None)
    assert {name: back[name] for name in event} == event


@given(
    st.dictionaries(
        st.sampled_from(
            ["id", "type", "source", "session_id", "payload", "target", "causation_id", "created_at"]
        ),
        json_values | st.sampled_from(["tool.x", "agent.x", "attention.requested", "\x00", "urn:x"]),
        max_size=4,
    )
)
def test_any_line_is_mapped_or_refused(members: dict[str, object]) -> None:
    line = json.dumps(stdio() | members).encode()
    mapper = DialectMapper(epoch_seed=0, adapter=Adapter(redact=Redactor()))
    problem: StdioError | None = None
    try:
        raw = mapper.to_aep(decode_stdio(line, MAX))
    except StdioError as error:
        problem = error
    if problem is None:
        decode_stdio(to_stdio(decode_aep(raw)), 2 * MAX)
    else:
        assert problem.value()["retryable"] is False


def test_safe_names_make_the_source() -> None:
    assert full(stdio(source=".."))["source"] == f"aep://stdio/{safe_name('..')}"
