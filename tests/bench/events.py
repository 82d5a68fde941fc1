"""The Events of the benchmark: valid, distinct, 460 bytes each whatever their number.

Every variable part has a fixed width, so a consumer's progress is a matter of counting bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

EVENT_BYTES = 460
_HEAD = (
    '{{"aep":"0.1","id":"{id}","type":"{type}","time":"2026-07-03T10:15:04.221Z",'
    '"source":"aep://host-a/agent/bench/session/{session}","agent":"bench","session":"{session}",'
    '"seq":{seq},"run":"r_0042","step":"turn-3","severity":"{severity}","capture":"redacted",'
    '"data":{{"tool":{{"name":"Bash","call_id":"t_91"}},"duration_ms":1042,"status":"ok",'
    '"result_redacted":"'
)
_TAIL = '"}}'
# ``seq`` is a JSON number: starting here keeps its width the same for the next 900 million Events.
_FIRST_SEQ = 100_000_000


@dataclass(slots=True)
class Session:
    """The Events of one session, in order: each call goes on where the last one ended."""

    name: str
    type: str = "tool.completed"
    severity: str = "notice"
    _made: int = 0

    def event(self) -> bytes:
        """The next Event of the session."""
        return self.events(1)[0]

    def events(self, count: int) -> list[bytes]:
        """The next ``count`` Events of the session."""
        start = _FIRST_SEQ + self._made
        self._made += count
        head = _HEAD.format(
            id="%(id)s", seq="%(seq)d", type=self.type, session=self.name, severity=self.severity
        )
        sample = head % {"id": self.event_id(start), "seq": start}
        filling = EVENT_BYTES - len(sample) - len(_TAIL)
        if filling < 0:
            raise ValueError(f"a session name of {len(self.name)} characters leaves no room for data")
        template = head + "x" * filling + _TAIL
        numbers = range(start, start + count)
        return [(template % {"id": self.event_id(seq), "seq": seq}).encode() for seq in numbers]

    def event_id(self, seq: int) -> str:
        """The id of the Event at ``seq``: unique over sessions, so it also marks where a burst ends."""
        return f"{self.name}-{seq}"


def marker(event: bytes) -> bytes:
    """The bytes that tell this Event from all others in a consumer's stream, in every framing and ceiling."""
    id_member = b'"id":'
    start = event.index(id_member) + len(id_member)
    return event[start : event.index(b",", start)]


def ndjson(events: list[bytes]) -> bytes:
    """The body of one POST."""
    return b"\n".join(events) + b"\n"


def batches(session: Session, count: int, size: int) -> list[list[bytes]]:
    """``count`` batches of ``size`` Events."""
    events = session.events(count * size)
    return [events[start : start + size] for start in range(0, len(events), size)]
