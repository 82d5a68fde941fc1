"""The states of a session on a pipe, and the lines about it."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aep_relay.protocol import stdio_session as session
from aep_relay.protocol.stdio import StdioError, decode, session_of
from aep_relay.protocol.stdio_session import Session, Signal, Stamp, State

STAMP = Stamp("evt_9", "2026-07-03T10:14:00.5Z", "aep://host/agent/relay")
FINAL = {State.CLOSED, State.ERROR}


def after(*signals: Signal) -> State:
    """The state that ``signals`` lead to."""
    one = Session()
    for signal in signals:
        one.advance(signal)
    return one.state


PATHS = [
    ((), State.CREATED),
    ((Signal.OPEN,), State.OPENED),
    ((Signal.OPEN, Signal.ANSWER), State.READY),
    ((Signal.OPEN, Signal.ANSWER, Signal.EXIT), State.CLOSED),
    ((Signal.OPEN, Signal.ANSWER, Signal.CRASH), State.ERROR),
    ((Signal.OPEN, Signal.ANSWER, Signal.END_OF_INPUT), State.CLOSED),
    ((Signal.OPEN, Signal.ANSWER, Signal.BROKEN_PIPE), State.CLOSED),
    ((Signal.OPEN, Signal.ANSWER, Signal.CLOSE, Signal.CRASH), State.CLOSED),
    ((Signal.OPEN, Signal.FAIL, Signal.EXIT), State.ERROR),
    ((Signal.OPEN, Signal.END_OF_INPUT), State.CLOSED),
    ((Signal.END_OF_INPUT,), State.CLOSED),
    ((Signal.CRASH,), State.ERROR),
]


@pytest.mark.parametrize(("signals", "state"), PATHS)
def test_the_process_decides_the_state(signals: tuple[Signal, ...], state: State) -> None:
    assert after(*signals) is state


REFUSED = [
    ((), Signal.ANSWER, "session_error"),
    ((Signal.OPEN,), Signal.OPEN, "session_error"),
    ((Signal.OPEN, Signal.ANSWER), Signal.OPEN, "session_error"),
    ((Signal.OPEN, Signal.ANSWER), Signal.ANSWER, "session_error"),
    ((Signal.CLOSE,), Signal.OPEN, "session_closed"),
    ((Signal.CRASH,), Signal.ANSWER, "session_closed"),
]


@pytest.mark.parametrize(("before", "signal", "code"), REFUSED)
def test_what_the_state_does_not_admit_is_refused(
    before: tuple[Signal, ...], signal: Signal, code: str
) -> None:
    one = Session()
    for earlier in before:
        one.advance(earlier)
    state = one.state
    with pytest.raises(StdioError) as refused:
        one.advance(signal)
    assert refused.value.code == code
    assert one.state is state


@given(st.lists(st.sampled_from(Signal)))
def test_a_final_state_is_left_by_nothing(signals: list[Signal]) -> None:
    one = Session()
    ended: State | None = None
    for signal in signals:
        with suppress(StdioError):
            one.advance(signal)
        assert ended in (None, one.state)
        assert one.is_over is (one.state in FINAL)
        ended = one.state if one.is_over else None


def test_an_error_is_reached_from_every_state_that_is_not_final() -> None:
    for state, signal in product(set(State) - FINAL, (Signal.CRASH, Signal.FAIL)):
        assert session.TRANSITIONS[state, signal] is State.ERROR


ERROR = StdioError("session_timeout", "no heartbeat", event_id="evt_1", details={"after_ms": 5})
ERROR_VALUE = {
    "code": "session_timeout",
    "message": "no heartbeat",
    "retryable": True,
    "details": {"after_ms": 5},
}
WRITTEN: list[tuple[Callable[[], bytes], str, object]] = [
    (lambda: session.session_opened(STAMP, "s"), "session.opened", {"session_id": "s", "version": "0.1"}),
    (
        lambda: session.session_ready(STAMP, "s", session.capabilities(1000, 30)),
        "session.ready",
        {
            "session_id": "s",
            "capabilities": {
                "protocol": "aep",
                "aep_version": "0.1",
                "transports": ["stdio"],
                "max_payload_size": 1000,
                "heartbeat_interval_ms": 30_000,
            },
        },
    ),
    (
        lambda: session.session_ready(STAMP, "s", session.capabilities()),
        "session.ready",
        {
            "session_id": "s",
            "capabilities": {"protocol": "aep", "aep_version": "0.1", "transports": ["stdio"]},
        },
    ),
    (lambda: session.session_heartbeat(STAMP, "s"), "session.heartbeat", {"session_id": "s"}),
    (lambda: session.session_closed(STAMP, "s"), "session.closed", {"session_id": "s"}),
    (
        lambda: session.session_closed(STAMP, "s", "end"),
        "session.closed",
        {"session_id": "s", "reason": "end"},
    ),
    (
        lambda: session.session_error(STAMP, "s", ERROR),
        "session.error",
        {"session_id": "s", "error": ERROR_VALUE},
    ),
    (
        lambda: session.event_rejected(STAMP, ERROR),
        "event.rejected",
        {"event_id": "evt_1", "error": ERROR_VALUE},
    ),
    (
        lambda: session.event_rejected(STAMP, StdioError("protocol_error", "not JSON\n")),
        "event.rejected",
        {"error": {"code": "protocol_error", "message": "not JSON\\n", "retryable": False}},
    ),
]


@pytest.mark.parametrize(("build", "type_", "payload"), WRITTEN)
def test_lines_are_events_of_the_dialect(build: Callable[[], bytes], type_: str, payload: object) -> None:
    line = build()
    assert line.endswith(b"}\n")
    assert line.count(b"\n") == 1
    event = decode(line, len(line))
    assert (event.id, event.created_at, event.source) == STAMP
    assert event.type == type_
    assert json.loads(bytes(event.payload)) == payload
    assert session_of(event) == ("s" if type_ != "event.rejected" else None)
