from __future__ import annotations

import json

import pytest

from aep_relay.protocol.dialect import DialectMapper
from aep_relay.protocol.intake import Intake
from aep_relay.protocol.position import MAX_POSITION
from aep_relay.protocol.stdio import Dialect, StdioError
from aep_relay.protocol.stdio_session import Signal, Stamp, State
from aep_relay.protocol.supervision import Supervised, complaint
from tests.protocol.samples import MINIMAL, text
from tests.protocol.test_intake import STDIO

STAMP = Stamp("id", "2026-01-05T09:00:00Z", "aep://host")


class Process:
    """A supervised process of the session ``s``, and what was refused of it."""

    def __init__(self) -> None:
        self.refused: list[StdioError] = []
        mapper = DialectMapper(agent="a", session="s", epoch_seed=7)
        self.side = Supervised(Intake(mapper, 4096), "s", "a", 7, self.refused.append)

    def aep(self, seq: int, **changes: object) -> None:
        assert self.side.take(text(MINIMAL, **{"session": "s", "seq": seq, **changes})) is not None

    def stdio(self, type_: str, **payload: object) -> object:
        return self.side.take(text(STDIO, "session_id", type=type_, payload=payload))

    def ended(self, code: int) -> tuple[object, ...]:
        event = self.side.ended(code, 1.5, STAMP)
        if event is None:
            return ()
        data = json.loads(event.raw)["data"]
        assert (event.type, event.agent, event.session, event.id) == ("session.ended", "a", "s", "id")
        return (event.position, data["reason"], data["duration_ms"])


@pytest.mark.parametrize(("code", "reason"), [(0, "normal"), (1, "error"), (-9, "killed")])
def test_the_end_is_said_for_it(code: int, reason: str) -> None:
    process = Process()
    assert process.ended(code) == ((7, 0), reason, 1500)
    assert process.side.session.state is (State.ERROR if code else State.CLOSED)


def test_the_end_comes_after_all_that_it_said() -> None:
    process = Process()
    process.aep(4, epoch=3)
    process.aep(9, epoch=2)
    process.aep(99, epoch=5, session="other")
    assert process.ended(0)[0] == (3, 5)
    process = Process()
    for _ in range(3):
        assert process.stdio("task.done") is not None
    assert process.ended(0)[0] == (7, 3)


def test_what_it_said_itself_is_not_said_again() -> None:
    process = Process()
    process.aep(0, type="session.ended")
    assert process.ended(1) == ()
    process = Process()
    process.aep(0, type="session.ended")
    process.aep(1)
    assert process.ended(1) != ()
    process = Process()
    process.aep(MAX_POSITION)
    assert process.ended(1) == ()


def test_the_life_of_its_session() -> None:
    process = Process()
    process.side.session.advance(Signal.OPEN)
    assert process.stdio("session.ready", session_id="s") is None
    state = process.side.session.state
    assert (state, process.side.dialect) == (State.READY, Dialect.STDIO)
    assert process.stdio("session.error", session_id="s", error={}) is None
    assert [error.code for error in process.refused] == ["session_error"]
    process.ended(0)
    assert process.side.session.state is State.ERROR


def test_what_is_no_event_is_refused_and_reading_goes_on() -> None:
    process = Process()
    assert process.side.take(b"hello") is None
    assert process.side.take(text(MINIMAL, aep="1.0")) is None
    assert process.side.take(text(MINIMAL, aep="1.0")) is None
    assert [error.code for error in process.refused] == ["protocol_error", "unsupported_version"]
    process.aep(0)
    assert process.side.dialect is Dialect.AEP


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (
            b' {"type":"event.rejected","payload":{"error":{"code":"x","message":"y"}}}',
            ("event.rejected", "x", "y"),
        ),
        (b'{"type":"session.error"}', ("session.error", "", "")),
        (b'{"type":"other"}', None),
        (b'{"type":"session.error","payload":3}', None),
        (b'{"type":' + b"[" * 100_000, None),
        (b"Traceback (most recent call last):", None),
        (b"\xff", None),
    ],
)
def test_complaints_on_standard_error(line: bytes, found: object) -> None:
    assert complaint(line) == found
