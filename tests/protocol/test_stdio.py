"""The stdio dialect's lines and errors."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aep_relay.protocol import errors
from aep_relay.protocol.stdio import (
    ERROR_CODES,
    Dialect,
    StdioError,
    classify,
    decode,
    error_for,
    line_too_long,
    session_of,
)

MAX = 10_000


def line_of(drop: str = "", /, **members: object) -> bytes:
    """A valid line of the dialect, changed as told."""
    event: dict[str, object] = {
        "aep_version": "0.1",
        "id": "evt_01",
        "type": "task.started",
        "source": "worker",
        "created_at": "2026-07-03T10:14:00Z",
        "payload": {"a": 1},
    }
    event.update(members)
    event.pop(drop, None)
    return json.dumps(event).encode()


LINES = [
    (b'{"aep":"0.1","id":"x"}', Dialect.AEP),
    (b' {"id":"x", "aep" : 7}\r', Dialect.AEP),
    (b'{"aep_version":"0.1"}', Dialect.STDIO),
    (b'{"x":{"aep":"0.1"},"aep_version":null}', Dialect.STDIO),
    (b'{"aep_version":"0.1","aep":"0.1"}', Dialect.AEP),
    (b'{"\\u0061ep":"0.1"}', Dialect.AEP),
    (b"{}", Dialect.NEITHER),
    (b'{"x":{"aep":"0.1","aep_version":"0.1"}}', Dialect.NEITHER),
    (b'["aep"]', Dialect.NEITHER),
    (b'"aep"', Dialect.NEITHER),
    (b"aep", Dialect.NEITHER),
    (b"", Dialect.NEITHER),
    (b'{"aep":"0.1"', Dialect.NEITHER),
    (b'{"aep":"0.1"} {}', Dialect.NEITHER),
    (b"\xff\xfe", Dialect.NEITHER),
    (b"[" * 100_000, Dialect.NEITHER),
    (b'{"aep":' + b"[" * 100_000, Dialect.NEITHER),
]


@pytest.mark.parametrize(("line", "dialect"), LINES)
def test_classify(line: bytes, dialect: Dialect) -> None:
    assert classify(line) is dialect


@given(st.binary())
def test_classify_never_raises(line: bytes) -> None:
    assert classify(line) in Dialect


def test_decode() -> None:
    event = decode(
        line_of(
            payload=[1, None],
            target="t",
            topic="",
            session_id="s",
            conversation_id="c",
            task_id="k",
            correlation_id="r",
            causation_id="z",
            expires_at="2026-07-04T00:00:00+02:00",
            delivery={"mode": "once"},
            unknown=[1],
        ),
        MAX,
    )
    assert (event.id, event.type, event.source, event.created_at) == (
        "evt_01", "task.started", "worker", "2026-07-03T10:14:00Z",
    )  # fmt: skip
    assert bytes(event.payload) == b"[1, null]"
    assert event.delivery is not None
    assert bytes(event.delivery) == b'{"mode": "once"}'
    assert (event.target, event.topic, event.session_id) == ("t", "", "s")
    assert (event.conversation_id, event.task_id, event.correlation_id) == ("c", "k", "r")
    assert (event.causation_id, event.expires_at) == ("z", "2026-07-04T00:00:00+02:00")


def test_what_is_optional_may_be_absent() -> None:
    event = decode(b"  " + line_of(payload=None, expires_at=None) + b"\r\n", MAX)
    assert bytes(event.payload) == b"null"
    assert (event.target, event.session_id, event.expires_at, event.delivery) == (None, None, None, None)


REFUSED = [
    ("invalid_envelope", "evt_01", line_of("source")),
    ("invalid_envelope", "evt_01", line_of("created_at")),
    ("invalid_envelope", "evt_01", line_of("payload")),
    ("invalid_envelope", "evt_01", line_of("type")),
    ("invalid_envelope", "evt_01", line_of("aep_version")),
    ("invalid_envelope", None, line_of("id")),
    ("invalid_envelope", None, line_of(id="")),
    ("invalid_envelope", None, line_of(id=7)),
    ("invalid_envelope", "evt_01", line_of(source="")),
    ("invalid_envelope", "evt_01", line_of(source=None)),
    ("invalid_envelope", "evt_01", line_of(created_at="yesterday")),
    ("invalid_envelope", "evt_01", line_of(created_at="2026-07-03T10:14:00")),
    ("invalid_envelope", "evt_01", line_of(expires_at="soon")),
    ("invalid_envelope", "evt_01", line_of(expires_at=3)),
    ("invalid_envelope", "evt_01", line_of(delivery=[])),
    ("invalid_envelope", "evt_01", line_of(delivery=None)),
    ("invalid_envelope", "evt_01", line_of(target=3)),
    ("invalid_envelope", "evt_01", line_of(session_id=None)),
    ("invalid_envelope", "evt_01", line_of(aep_version=0.1)),
    ("invalid_envelope", None, b'{"aep_version":"0.1","id":"a","id":"b"}'),
    ("protocol_error", None, line_of(id="\ud800")),
    ("invalid_envelope", None, b"[1]"),
    ("invalid_envelope", None, b'"x"'),
    ("invalid_envelope", None, b" " * (MAX + 1)),
    ("invalid_event_type", "evt_01", line_of(type="task")),
    ("invalid_event_type", "evt_01", line_of(type="Task.started")),
    ("invalid_event_type", "evt_01", line_of(type="task..started")),
    ("invalid_event_type", "evt_01", line_of(type="task.1")),
    ("invalid_event_type", "evt_01", line_of(type="task.started\n")),
    ("invalid_event_type", "evt_01", line_of(type="x-y.z")),
    ("unsupported_version", "evt_01", line_of(aep_version="1.0")),
    ("unsupported_version", "evt_01", line_of("payload", aep_version="0.2")),
    ("protocol_error", None, b"not json"),
    ("protocol_error", None, b"{"),
    ("protocol_error", None, b""),
    ("protocol_error", None, line_of() + b"{}"),
    ("protocol_error", None, b"\xef\xbb\xbf" + line_of()),
    ("protocol_error", None, b'{"id":"\xff"}'),
    ("protocol_error", None, b'{"a":' + b"[" * 300 + b"]" * 300 + b"}"),
    ("protocol_error", None, b'{"a":' + b"[" * 4000),
]


@pytest.mark.parametrize(("code", "event_id", "line"), REFUSED)
def test_what_is_no_event_is_refused_in_the_error_model(code: str, event_id: str | None, line: bytes) -> None:
    with pytest.raises(StdioError) as refused:
        decode(line, MAX)
    assert refused.value.code == code
    assert refused.value.event_id == event_id
    value = refused.value.value()
    assert value["code"] == code
    assert value["message"] == refused.value.detail != ""
    assert value["retryable"] is ERROR_CODES[code]


def test_errors_say_what_is_supported() -> None:
    with pytest.raises(StdioError) as refused:
        decode(line_of(aep_version="2.0"), MAX)
    assert refused.value.value()["details"] == {"versions": ["0.1"]}
    assert line_too_long(9).value()["details"] == {"max_payload_size": 9}
    assert "details" not in StdioError("internal_error", "x").value()


@given(st.binary())
def test_any_bytes_are_an_event_or_refused(line: bytes) -> None:
    with pytest.raises(StdioError):
        decode(line, MAX)


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(
    st.dictionaries(
        st.sampled_from(
            ["aep_version", "id", "type", "source", "created_at", "payload", "target", "session_id"]
        )
        | st.sampled_from(["expires_at", "delivery", "other"]),
        json_values,
        max_size=4,
    )
)
def test_any_members_are_an_event_or_refused(members: dict[str, object]) -> None:
    problem: StdioError | None = None
    try:
        event = decode(line_of(**members), MAX)
    except StdioError as error:
        problem = error
    if problem is None:
        assert event.id == members.get("id", "evt_01")
    else:
        assert problem.value()["retryable"] is False


ALL_PROBLEMS: list[tuple[errors.ProtocolError | errors.Refusal, str]] = [
    (StdioError("session_timeout", "x"), "session_timeout"),
    (errors.InvalidEvent("x", event_id="e"), "invalid_envelope"),
    (errors.EventTooLarge("x"), "invalid_envelope"),
    (errors.BadJson("x"), "protocol_error"),
    (errors.VersionUnsupported("x"), "unsupported_version"),
    (errors.Unauthorized("x"), "unauthorized"),
    (errors.Forbidden("x"), "unauthorized"),
    (errors.Refusal("unauthorized", "x"), "unauthorized"),
    (errors.Refusal("no-route", "x"), "protocol_error"),
    (errors.InvalidFilter("x"), "protocol_error"),
]


@pytest.mark.parametrize(("problem", "code"), ALL_PROBLEMS)
def test_every_problem_has_a_place_in_the_error_model(
    problem: errors.ProtocolError | errors.Refusal, code: str
) -> None:
    error = error_for(problem)
    assert error.code == code
    assert "x" in error.detail
    assert error.event_id == getattr(problem, "event_id", None)


SESSIONS = [
    (line_of(session_id="s"), "s"),
    (line_of(session_id=""), None),
    (line_of(), None),
    (line_of(payload={"session_id": "p"}), None),
    (line_of(type="session.opened", payload={"session_id": "p", "version": "0.1"}), "p"),
    (line_of(type="session.opened", session_id="s", payload={"session_id": "p"}), "s"),
    (line_of(type="session.opened", payload={"session_id": ""}), None),
    (line_of(type="session.opened", payload={"session_id": 3}), None),
    (line_of(type="session.opened", payload=None), None),
    (line_of(type="session.opened", payload=["session_id"]), None),
]


@pytest.mark.parametrize(("line", "session"), SESSIONS)
def test_which_session_an_event_is_about(line: bytes, session: str | None) -> None:
    assert session_of(decode(line, MAX)) == session
