"""Event texts for tests: a full one, a minimal one, and either with changes."""

from __future__ import annotations

import json

import pytest

from aep_relay.protocol.errors import InvalidEvent
from aep_relay.protocol.event import decode

BASE: dict[str, object] = {
    "aep": "0.1",
    "id": "01JX9YB3P4T90000000000TEST",
    "type": "tool.completed",
    "subject": "Bash",
    "time": "2026-07-03T10:15:04.221Z",
    "source": "aep://host-a/agent/claude-code/session/s_8f2c",
    "agent": "claude-code",
    "session": "s_8f2c",
    "run": "r_0042",
    "step": "turn-3",
    "seq": 3,
    "epoch": 2,
    "cause": "01JX9YB2Z1QK0000000000TEST",
    "severity": "notice",
    "capture": "redacted",
    "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    "data": {"tool": {"name": "Bash", "call_id": "t_91"}, "status": "success", "duration_ms": 1240},
}
MINIMAL = {name: BASE[name] for name in ("aep", "id", "type", "time", "source", "agent", "session", "seq")}


def text(members: dict[str, object], *absent: str, **changes: object) -> bytes:
    """The compact JSON of an Event: ``members`` with ``changes`` and without ``absent``."""
    kept = {name: value for name, value in members.items() if name not in absent} | changes
    return json.dumps(kept, separators=(",", ":"), ensure_ascii=False).encode()


def spelled(spelling: str, members: dict[str, object] = MINIMAL) -> bytes:
    """An Event with ``spelling``, JSON text of one or more members, as it stands."""
    return text(members)[:-1] + b"," + spelling.encode("utf-8", "surrogatepass") + b"}"


def refusal(raw: bytes) -> InvalidEvent:
    with pytest.raises(InvalidEvent) as caught:
        decode(raw)
    return caught.value
