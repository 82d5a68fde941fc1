"""What a follower has had of each session, and the file that it survives in.

A session is known by its position, the last one processed, and by the position-less Events (commands, routing notes)
that came behind it, since a resume after a position repeats those (AEP-0003 §7). Invariants: the file is replaced as
a whole, so that a crash leaves the old one or the new one; it holds nothing that was not processed before.
"""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from aep_relay.client.errors import Misused
from aep_relay.protocol.position import MAX_POSITION

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aep_relay.protocol.event import Event
    from aep_relay.protocol.position import Position

MAX_SESSIONS: Final = 10_000
"""The ones heard of last are remembered."""
MAX_BESIDE: Final = 100
MAX_SEEN: Final = 50_000
MAX_STATE_BYTES: Final = 64 << 20

_VERSION = 1


@dataclass(slots=True)
class Known:
    """How far one session has been followed."""

    position: Position | None = None
    """None: only position-less Events have come."""
    beside: list[tuple[str, str]] = field(default_factory=list)
    """``(source, id)`` of the position-less Events since."""


class Positions:
    """All sessions that have been heard of, the one heard of last at the end."""

    def __init__(self) -> None:
        self.sessions: dict[str, Known] = {}
        self._seen: dict[tuple[str, str], None] = {}

    def is_new(self, event: Event) -> bool:
        """Whether ``event`` has not been processed yet, as far as that is remembered."""
        if event.key in self._seen:
            return False
        known = self.sessions.get(event.session or "")
        return event.position is not None or known is None or event.key not in known.beside

    def note(self, event: Event) -> None:
        """Take down that ``event`` is processed."""
        self._seen[event.key] = None
        if len(self._seen) > MAX_SEEN:
            del self._seen[next(iter(self._seen))]
        if event.session is not None:
            known = self.sessions.pop(event.session, None) or Known()
            self.sessions[event.session] = known
            self._advance(known, event)
            if len(self.sessions) > MAX_SESSIONS:
                del self.sessions[next(iter(self.sessions))]

    @staticmethod
    def _advance(known: Known, event: Event) -> None:
        if event.position is None:
            known.beside = [*known.beside[1 - MAX_BESIDE :], event.key]
        elif known.position is None or event.position > known.position:
            known.position = event.position
            known.beside = []

    def resume_from(self) -> list[tuple[str, Position]]:
        """Return the sessions that can be resumed by a position, the one heard of last first."""
        found = [(name, known.position) for name, known in self.sessions.items()]
        return [(name, position) for name, position in reversed(found) if position is not None]


@dataclass(slots=True)
class State:
    """What a state file holds."""

    request: dict[str, object]
    """What is followed: filter and capture."""
    since: str | None
    """Sessions that have not been heard of count from this time on, an RFC 3339 text; None: from their start."""
    positions: Positions = field(default_factory=Positions)

    def save(self, path: Path) -> None:
        """Replace the file. Raises ``Misused``."""
        document = {
            "aep-relay-tail": _VERSION,
            "request": self.request,
            "since": self.since,
            "sessions": list(_entries(self.positions)),
        }
        try:
            descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
            try:
                with os.fdopen(descriptor, "w", encoding="utf-8") as out:
                    json.dump(document, out, separators=(",", ":"))
                    out.flush()
                    os.fsync(out.fileno())
                os.replace(name, path)
            except BaseException:
                os.unlink(name)
                raise
        except OSError as error:
            text = f"{path}: the state cannot be written: {error.strerror}"
            raise Misused(text, "name a file in a directory that can be written to") from None

    @classmethod
    def load(cls, path: Path) -> State | None:
        """Return what ``path`` holds, None if there is no such file. Raises ``Misused``."""
        try:
            if path.stat().st_size > MAX_STATE_BYTES:
                raise ValueError("larger than any state")
            document = json.loads(path.read_text(encoding="utf-8"))
            if document["aep-relay-tail"] != _VERSION:
                raise ValueError("of another version")
            state = cls(dict(document["request"]), document["since"])
            for entry in document["sessions"]:
                state.positions.sessions[str(entry["session"])] = _known(entry)
            return state
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Misused(f"{path}: the state cannot be read: {error.strerror}") from None
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            text = f"{path} is no state of `aep-relay tail`: {error}"
            raise Misused(text, "name another file, or remove this one to begin anew") from None


def _entries(positions: Positions) -> Iterator[dict[str, object]]:
    for session, known in positions.sessions.items():
        entry: dict[str, object] = {"session": session}
        if known.position is not None:
            entry["epoch"], entry["seq"] = known.position
        if known.beside:
            entry["beside"] = known.beside
        yield entry


def _known(entry: dict[str, object]) -> Known:
    position = None
    if "seq" in entry:
        epoch, seq = entry["epoch"], entry["seq"]
        if not isinstance(epoch, int) or not isinstance(seq, int):
            raise ValueError("a position is no pair of integers")
        if min(epoch, seq) < 0 or max(epoch, seq) > MAX_POSITION:
            raise ValueError("a position is out of range")
        position = (epoch, seq)
    beside = entry.get("beside", [])
    if not isinstance(beside, list):
        raise ValueError("beside is no array")
    return Known(position, [(str(source), str(id_)) for source, id_ in beside])
