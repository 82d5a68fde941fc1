"""What was sent, what has come, and what is lost: the books of the soak.

A session's Events have the positions 1, 2, 3 and so on, and the odd ones are *essential*: of severity ``notice`` or
above. So whoever has taken in an essential Event knows which one has to come next. Sessions arrive in order (AEP-0003
§5: a session's replay precedes its own live Events): another one with a higher position is a loss, unless a
``replay-exhausted`` says that what is held begins only there. That may come a little later: an Event that was evicted
and is sent again goes out live, while the replay that has to tell of the eviction waits for its turn.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

SEVERITIES = ("debug", "notice", "info", "warning")
"""By position modulo four."""

_MARK = re.compile(rb'"id":"(soak[0-9]+)-([0-9]*[13579])"\}')
"""The end of an essential Event in any framing, so that one that was cut off does not count."""
_EXHAUSTED = re.compile(
    rb'"session":"(soak[0-9]+)","earliest":\{"epoch":0,"seq":([0-9]+)\}|: replay-exhausted (soak[0-9]+) 0:([0-9]+)\n'
)
_CLOSING = b'{"type":"closing"'


def event(session: str, seq: int, filling: str, type_: str = "tool.completed", cause: str = "") -> bytes:
    """Return the Event at ``seq`` of ``session``."""
    severity = SEVERITIES[seq % 4]
    caused = f'"cause":"{cause}",' if cause else ""
    return (
        f'{{"aep":"0.1","type":"{type_}","time":"2026-07-03T10:15:04.221Z","source":"aep://host/agent/soak/{session}",'
        f'"agent":"soak","session":"{session}","seq":{seq},{caused}"severity":"{severity}","capture":"full",'
        f'"data":{{"status":"ok","duration_ms":{seq},"result":"{filling}"}},"id":"{session}-{seq}"}}'
    ).encode()


@dataclass(slots=True)
class Session:
    """What was emitted of one session."""

    name: str
    seq: int = 0
    """The last position that was made."""
    confirmed: int = 0
    """Up to here the relay has said that it took the Events in."""


@dataclass(slots=True)
class Tally:
    """What all consumers together have taken in, were told is gone, and have lost."""

    received: int = 0
    repeated: int = 0
    excused: int = 0
    lost: list[str] = field(default_factory=list)


class Ledger:
    """One consumer's books over some sessions: it wants every essential Event after the position it ``begins`` at."""

    def __init__(
        self,
        name: str,
        sessions: Mapping[str, Session],
        tally: Tally,
        begins: Mapping[str, int] | None = None,
    ) -> None:
        self.name = name
        self.sessions = sessions
        self.positions = dict.fromkeys(sessions, 0) if begins is None else dict(begins)
        """By session, the position of the last essential Event taken in: what it resumes from."""
        self.last_id = b""
        """Of the last whole message of an SSE stream."""
        self._tally = tally
        self._expected = {name: (position + 1) | 1 for name, position in self.positions.items()}
        self._gaps: dict[str, tuple[int, int]] = {}
        """By session, from where to where nothing came and nobody has said yet that it is gone."""
        self._tail = b""

    def begin(self) -> None:
        """Know that a new connection begins: nothing that was cut off goes on."""
        self._tail = b""

    def take(self, data: bytes) -> None:
        """Take in what has come, in pieces of any size."""
        data = self._tail + data
        end = max(data.rfind(b"\n"), data.rfind(b"}")) + 1
        whole, self._tail = data[:end], data[end:]
        if b"exhausted" in whole:
            self._take_with_gaps(whole)
        else:
            for name, seq in _MARK.findall(whole):
                self._note(name.decode(), int(seq))
        at = whole.rfind(b"\nid: ", 0, whole.rfind(b"\n\n") + 1)
        if at >= 0:
            self.last_id = whole[at + 5 : whole.index(b"\n", at + 5)]

    def _take_with_gaps(self, data: bytes) -> None:
        found = [*_EXHAUSTED.finditer(data), *_MARK.finditer(data)]
        for match in sorted(found, key=re.Match.start):
            if match.re is _MARK:
                self._note(match[1].decode(), int(match[2]))
            else:
                self._excuse((match[1] or match[3]).decode(), int(match[2] or match[4]))

    def _note(self, name: str, seq: int) -> None:
        expected = self._expected.get(name)
        if expected is None:
            return
        tally = self._tally
        if seq < expected:
            tally.repeated += 1
            return
        if seq > expected:
            start, _ = self._gaps.get(name, (expected, seq))
            self._gaps[name] = (start, seq)
        tally.received += 1
        self._expected[name] = seq + 2
        self.positions[name] = seq

    def _excuse(self, name: str, earliest: int) -> None:
        """What is before ``earliest`` is gone, and the relay has said so."""
        expected = self._expected.get(name)
        if expected is None:
            return
        first = earliest | 1
        start, end = self._gaps.get(name, (expected, 0))
        if end < earliest:
            self._gaps.pop(name, None)
            self._tally.excused += max(0, first - start) // 2
        self._expected[name] = max(expected, first)

    def close(self) -> None:
        """Count what nobody has said to be gone as lost."""
        for name, (start, end) in self._gaps.items():
            self._tally.lost.append(f"{self.name}: {name} went from {start - 2} to {end}")
        self._gaps.clear()

    def missing(self, goals: Mapping[str, int]) -> list[str]:
        """Return the sessions whose essential Events up to the position in ``goals`` have not all come."""
        return [name for name, goal in goals.items() if self._expected[name] <= goal]

    def progress(self, name: str) -> str:
        """Return how far it has come with a session."""
        return f"{name} at {self._expected[name]}, resuming from {self.positions[name]}"

    def resume_from(self, told: Mapping[tuple[str, str], int]) -> list[str]:
        """Resume from the positions of a farewell; return the sessions of which it tells more than has come."""
        overstated = []
        for (_, name), seq in told.items():
            self.positions[name] = seq
            if seq >= self._expected[name]:
                overstated.append(f"{name}: {seq} delivered, {self._expected[name]} is still to come")
        return overstated


def goals(sessions: Mapping[str, Session]) -> dict[str, int]:
    """Return by session up to where everything has to come."""
    return {name: session.confirmed for name, session in sessions.items()}


class Farewell:
    """Finds the ``closing`` frame in what a WebSocket receives last (AEP-0003 §3.5.4)."""

    def __init__(self) -> None:
        self._data = b""

    def feed(self, data: bytes) -> None:
        """Take in what has come, in pieces of any size."""
        data = self._data + data
        at = data.find(_CLOSING)
        # A frame whose beginning has not come whole may begin in the last bytes.
        self._data = data[at:] if at >= 0 else data[1 - len(_CLOSING) :]

    def delivered(self) -> dict[tuple[str, str], int] | None:
        """Return by subscription and session the position to resume from; None without a whole frame."""
        if not self._data.startswith(_CLOSING):
            return None
        try:
            found, _ = json.JSONDecoder().raw_decode(self._data.decode("latin-1"))
        except ValueError:
            return None
        return {(entry["sub"], entry["session"]): entry["seq"] for entry in found["delivered"]}
