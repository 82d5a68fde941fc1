from __future__ import annotations

import json
from typing import Any

import pytest

from aep_relay.protocol.conversation import Conversation
from aep_relay.protocol.dialect import DialectMapper
from aep_relay.protocol.intake import Intake
from aep_relay.protocol.jsonl import OverlongLine
from aep_relay.protocol.stdio import StdioError
from aep_relay.protocol.stdio_session import Stamp, State
from tests.protocol.samples import BASE, text
from tests.protocol.test_intake import STDIO


class Talk:
    """A conversation, and what it has said."""

    def __init__(self) -> None:
        self.out: list[bytes] = []
        self.err: list[bytes] = []
        intake = Intake(DialectMapper(epoch_seed=0), 4096)
        stamp = Stamp("id", "2026-01-05T09:00:00Z", "aep://relay")
        self.side = Conversation(
            intake, self.out.append, self.err.append, lambda: stamp, max_payload_bytes=4096
        )

    def says(self, type_: str, **payload: object) -> None:
        assert self.side.take(text(STDIO, "session_id", type=type_, payload=payload)) is None

    @property
    def state(self) -> State:
        return self.side.session.state

    @property
    def said(self) -> list[tuple[str, Any]]:
        found = [json.loads(line) for line in self.out]
        self.out.clear()
        return [(each["type"], each["payload"]) for each in found]

    @property
    def complained(self) -> list[str]:
        found = [json.loads(line) for line in self.err]
        self.err.clear()
        return [f"{each['type']} {each['payload']['error']['code']}" for each in found]


@pytest.fixture
def talk() -> Talk:
    return Talk()


def test_a_session_is_opened_and_ended(talk: Talk) -> None:
    talk.says("session.opened", session_id="s", version="0.1")
    assert talk.said == [
        (
            "session.ready",
            {
                "session_id": "s",
                "capabilities": {
                    "protocol": "aep",
                    "aep_version": "0.1",
                    "transports": ["stdio"],
                    "max_payload_size": 4096,
                },
            },
        )
    ]
    talk.says("session.heartbeat", session_id="s")
    event = talk.side.take(text(STDIO))
    assert event is not None
    assert event.type == "x.stdio.task.done"
    talk.side.end()
    assert talk.said == [("session.closed", {"session_id": "s"})]
    talk.side.end()
    assert (talk.said, talk.complained, talk.state) == ([], [], State.CLOSED)


def test_without_a_session_nothing_is_said(talk: Talk) -> None:
    assert talk.side.take(text(BASE)) is not None
    talk.side.end()
    assert (talk.said, talk.state) == ([], State.CLOSED)


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        ({"session_id": "s", "version": "1.0"}, "unsupported_version"),
        ({"version": "0.1"}, "invalid_envelope"),
        ({"session_id": "s", "version": 1}, "invalid_envelope"),
    ],
)
def test_an_opening_that_opens_nothing(payload: dict[str, object], code: str, talk: Talk) -> None:
    talk.says("session.opened", **payload)
    assert (talk.said, talk.complained) == ([], [f"event.rejected {code}"])
    talk.says("session.opened", session_id="s", version="0.1")
    assert talk.said[0][0] == "session.ready"


def test_a_session_is_opened_once(talk: Talk) -> None:
    talk.says("session.opened", session_id="s", version="0.1")
    talk.says("session.opened", session_id="t", version="0.1")
    assert talk.complained == ["event.rejected session_error"]
    assert (talk.side.session_id, talk.state) == ("s", State.READY)


@pytest.mark.parametrize(
    ("type_", "state"), [("session.closed", State.CLOSED), ("session.error", State.ERROR)]
)
def test_the_other_side_ends_it(type_: str, state: State, talk: Talk) -> None:
    talk.says("session.opened", session_id="s", version="0.1")
    talk.says(type_, session_id="s")
    assert talk.state is state
    talk.side.end()
    assert [kind for kind, _ in talk.said] == ["session.ready"]


def test_what_is_no_event_is_rejected_and_reading_goes_on(talk: Talk) -> None:
    for line in (
        b"hello",
        OverlongLine(4096),
        text(BASE, "id"),
        text(BASE, aep="1.0"),
        text(BASE, aep="1.0"),
    ):
        assert talk.side.take(line) is None
    assert talk.complained == [
        "event.rejected protocol_error",
        "event.rejected invalid_envelope",
        "event.rejected invalid_envelope",
        "event.rejected unsupported_version",
    ]
    assert talk.side.take(text(BASE)) is not None


def test_the_rejected_event_is_named(talk: Talk) -> None:
    talk.side.take(text(STDIO, "payload"))
    assert json.loads(talk.err[0])["payload"]["event_id"] == "evt_01"


def test_the_rejected_line_is_named(talk: Talk) -> None:
    talk.side.take(b"hello", 7)
    talk.side.take(text(BASE, aep="1.0"), 9)
    found = [json.loads(line)["payload"]["error"]["details"] for line in talk.err]
    assert found == [{"line": 7}, {"versions": ["0.1"], "line": 9}]


def test_it_fails(talk: Talk) -> None:
    talk.side.fail(StdioError("session_error", "no more"))
    talk.says("session.opened", session_id="s", version="0.1")
    assert talk.complained == ["event.rejected session_error", "event.rejected session_closed"]
    other = Talk()
    other.says("session.opened", session_id="s", version="0.1")
    other.side.fail(StdioError("session_timeout", "no more"))
    assert (other.complained, other.side.session.state) == (["session.error session_timeout"], State.ERROR)
