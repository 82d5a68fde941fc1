"""A recorded history made into new sessions.

Invariants: no id and no session of the recording occurs in what is emitted; a session's new name, and an Event's new
id, is the same wherever it is referred to; redelivered Events stay redelivered ones. Commands are left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
import trio

from aep_relay.cli.support import exits
from aep_relay.cli.support.lines import opened
from aep_relay.cli.support.making import new_epoch, new_id
from aep_relay.client.emitting import MAX_BATCH_EVENTS, Emitter
from aep_relay.client.errors import Refused
from aep_relay.client.http import asking
from aep_relay.client.times import moment, now
from aep_relay.protocol.errors import InvalidEvent
from aep_relay.protocol.event import Shape, decode
from aep_relay.protocol.jsonl import OverlongLine, one_line

if TYPE_CHECKING:
    from datetime import datetime

    from aep_relay.cli.support.output import Output
    from aep_relay.client.target import Target
    from aep_relay.protocol.event import Event

MAX_EVENT_BYTES: Final = 64 << 20
MAX_DELAY_SECONDS: Final = 30 * 86400.0

_SESSIONS_IN_PAYLOAD: Final = ("parent", "child")


class Rewriter:
    """Gives Events new identities."""

    def __init__(self, suffix: str | None, *, keep_time: bool) -> None:
        self._suffix = f"-replay-{new_epoch()}" if suffix is None else suffix
        self._keep_time = keep_time
        self._ids: dict[tuple[str, str], str] = {}
        self._by_id: dict[str, str] = {}
        self._given: set[str] = set()
        self.sessions: dict[str, str] = {}
        """New names by old ones."""

    def rewrite(self, event: Event) -> bytes:
        """Return the text of ``event`` as another one."""
        members: dict[str, Any] = msgspec.json.decode(event.raw, type=dict[str, msgspec.Raw])
        members["id"] = self._id(event)
        if event.session is not None:
            members["session"] = self._session(event.session)
        for name, value in (("cause", event.cause), ("subject", event.subject)):
            if value is not None:
                members[name] = self._reference(event.source, value, always=name == "cause")
        members.pop("traceparent", None)
        if not self._keep_time:
            members["time"] = now()
        if "data" in members:
            members["data"] = self._payload(members["data"])
        # Compact, and as such on one line.
        return msgspec.json.format(msgspec.json.encode(members), indent=-1)

    def _id(self, event: Event) -> str:
        id_ = self._ids.get(event.key)
        if id_ is None:
            # What an earlier Event called its cause before this one came keeps the name it got there.
            id_ = self._by_id.get(event.id)
            if id_ is None or id_ in self._given:
                id_ = new_id()
            self._given.add(id_)
            self._ids[event.key] = self._by_id[event.id] = id_
        return id_

    def _session(self, name: str) -> str:
        return self.sessions.setdefault(name, name + self._suffix)

    def _reference(self, source: str, id_: str, *, always: bool) -> str:
        found = self._ids.get((source, id_)) or self._by_id.get(id_)
        if found is None:
            if not always:
                return id_
            found = self._by_id[id_] = new_id()
        return found

    def _payload(self, spelled: msgspec.Raw) -> object:
        """Return a payload with the sessions it names renamed; as it is spelled if it names none."""
        data = msgspec.json.decode(spelled, type=dict[str, msgspec.Raw])
        changed = False
        for name in _SESSIONS_IN_PAYLOAD:
            relative = _relative(data[name]) if name in data else None
            if relative is not None:
                members, session = relative
                data[name] = msgspec.Raw(msgspec.json.encode({**members, "session": self._session(session)}))
                changed = True
        return data if changed else spelled


def _relative(spelled: msgspec.Raw) -> tuple[dict[str, msgspec.Raw], str] | None:
    """Return the members of a parent or child and its session, None if it names none."""
    try:
        members = msgspec.json.decode(spelled, type=dict[str, msgspec.Raw])
        return members, msgspec.json.decode(members["session"], type=str)
    except (ValueError, KeyError):
        return None


class Replay:
    """Emits a file's Events at their pace."""

    def __init__(self, rewriter: Rewriter, speed: float, max_pause_seconds: float | None) -> None:
        self._rewriter = rewriter
        self._speed = speed
        self._max_pause_seconds = max_pause_seconds
        self._last: datetime | None = None
        self.emitted = 0
        self.commands = 0

    def told(self) -> str:
        """Return what has been done, in words."""
        sessions = self._rewriter.sessions
        left_out = f", {self.commands} commands left out" if self.commands else ""
        return f"{self.emitted} Events replayed in {len(sessions)} new sessions{left_out}"

    async def show(self, name: str, output: Output) -> None:
        """Write what would be emitted. Raises ``Refused`` for a line that is no Event, ``Misused``."""
        with opened(name) as lines:
            while (found := await lines.read()) is not None:
                for number, line in found:
                    event = self._event(number, line)
                    if event is not None:
                        output.event(self._rewriter.rewrite(event))
                        self.emitted += 1

    async def emit(self, name: str, target: Target, patience_seconds: float) -> None:
        """Emit the file. Raises what ``show`` and ``Emitter.emit`` raise."""
        with opened(name) as lines:
            async with asking(target) as client:
                emitter = Emitter(client, patience_seconds, exits.waiting)
                batch: list[bytes] = []
                due = trio.current_time()
                while (found := await lines.read()) is not None:
                    for number, line in found:
                        event = self._event(number, line)
                        if event is None:
                            continue
                        due += self._pause_seconds(event)
                        if due > trio.current_time() or len(batch) == MAX_BATCH_EVENTS:
                            await self._flush(emitter, batch)
                            await trio.sleep_until(due)
                        batch.append(self._rewriter.rewrite(event))
                await self._flush(emitter, batch)

    async def _flush(self, emitter: Emitter, batch: list[bytes]) -> None:
        if batch:
            await emitter.emit(batch)
            self.emitted += len(batch)
            batch.clear()

    def _event(self, number: int, line: bytes | OverlongLine) -> Event | None:
        """Return the Event of a line, None if it is a command."""
        try:
            if isinstance(line, OverlongLine):
                raise InvalidEvent(f"longer than {line.limit_bytes} bytes")
            event = decode(one_line(line), MAX_EVENT_BYTES)
        except InvalidEvent as error:
            advice = "`aep-relay validate` says everything that is wrong with a file"
            raise Refused(error.code, f"line {number}: {error.detail}", advice) from None
        if event.shape is Shape.COMMAND:
            self.commands += 1
            return None
        return event

    def _pause_seconds(self, event: Event) -> float:
        """Return how long to wait before ``event``; none where the times run backwards."""
        when = moment(event.time)
        if when is None:
            return 0.0
        last, self._last = self._last, when if self._last is None else max(when, self._last)
        if last is None:
            return 0.0
        seconds = max(0.0, (when - last).total_seconds()) / self._speed
        return min(seconds, MAX_DELAY_SECONDS if self._max_pause_seconds is None else self._max_pause_seconds)
