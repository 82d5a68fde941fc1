"""The stdio dialect to AEP-0001 and back.

| stdio | AEP-0001 |
|---|---|
| ``id`` | ``id`` |
| ``type`` of a known category or vendor | ``type`` |
| any other ``type`` | ``x.stdio.{type}`` |
| ``created_at`` | ``time`` |
| ``source``, if it is a URI | ``source`` |
| any other ``source`` | ``aep://stdio/{its safe name}``, itself in ``stdiosource`` |
| ``session_id``, or that of a ``session.*`` payload | ``session``; of ``agent.*``: ``sessionid`` |
| ``causation_id`` | ``cause`` |
| ``payload``, an object | ``data`` |
| ``payload``, ``null`` | none |
| any other ``payload`` | ``data.payload``, with ``barepayload`` |
| ``target``, ``topic`` | extension attributes of that name |
| ``conversation_id``, ``task_id``, ``correlation_id``, ``expires_at`` | the same without the underscore |
| ``delivery`` | none: it is no scalar |

``agent`` is configured or taken from the source. ``seq`` counts a session's Events as they arrive. Invariants: a mapper
assigns no position of a session twice and no lower one after a higher; it remembers a bounded number of sessions. What
enters through a mapper is held to its adapter's ceiling (AEP-0003 §9). Empty strings count as absent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import unquote

import msgspec

from aep_relay.protocol.adapter import MAX_NAME_CHARS, Adapter, safe_name
from aep_relay.protocol.errors import InvalidEvent
from aep_relay.protocol.event import Event
from aep_relay.protocol.grammar import TYPE, is_time, is_uri
from aep_relay.protocol.position import MAX_POSITION
from aep_relay.protocol.registry import Capture, is_command
from aep_relay.protocol.stdio import TYPE as STDIO_TYPE
from aep_relay.protocol.stdio import VERSION, StdioError, StdioEvent, session_of

MAX_SESSIONS: Final = 10_000
"""Sessions whose ``seq`` a mapper remembers, by default."""

_PREFIX: Final = "x.stdio."
_SOURCE, _SESSION, _BARE = "stdiosource", "sessionid", "barepayload"
_EXTENSIONS: Final[Mapping[str, str]] = {
    "target": "target",
    "topic": "topic",
    "conversation_id": "conversationid",
    "task_id": "taskid",
    "correlation_id": "correlationid",
    "expires_at": "expiresat",
}
_FIELDS: Final = {extension: name for name, extension in _EXTENSIONS.items()}
_RENAMED: Final = frozenset({"aep", "time", "session", "cause", "data", _SOURCE, _SESSION, _BARE, *_FIELDS})
"""Members of an AEP-0001 Event that have another name in the stdio dialect."""
_OWN: Final = frozenset({"aep_version", "created_at", "payload", "delivery", "id", "type", "source"})
"""Members of the stdio dialect that no attribute of the same name may take the place of."""

_read_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_write = msgspec.json.Encoder().encode


class DialectMapper:
    """Maps Events of the stdio dialect, in the order of their arrival, to AEP-0001 Events.

    ``agent`` is who emits, by default whom the source names. ``epoch_seed`` is the first epoch: greater than at any
    earlier start, such as the time of the start. ``session`` is that of Events that name none. Raises ``ValueError``
    for a seed that leaves no room to count.
    """

    def __init__(
        self,
        *,
        agent: str | None = None,
        epoch_seed: int,
        session: str | None = None,
        adapter: Adapter | None = None,
        max_sessions: int = MAX_SESSIONS,
    ) -> None:
        self.agent = agent
        self.session = session
        self._adapter = Adapter() if adapter is None else adapter
        self._max_sessions = max_sessions
        self._positions: dict[str, tuple[int, int]] = {}
        self._epoch = -1
        self.restart(epoch_seed)

    @property
    def epoch(self) -> int:
        """The epoch of sessions that appear now."""
        return self._epoch

    def restart(self, epoch_seed: int = 0) -> None:
        """Begin a new epoch, greater than any before, for every session: the emitter was started again."""
        epoch = max(epoch_seed, self._epoch + 1)
        if not 0 <= epoch <= MAX_POSITION // 2:
            raise ValueError(f"an epoch seed is from 0 to {MAX_POSITION // 2}")
        self._epoch = epoch
        self._positions.clear()

    def to_aep(self, event: StdioEvent) -> bytes:
        """Return the text of the AEP-0001 Event that ``event`` is, one line.

        Raises :class:`StdioError` if it is none; no position is spent on it then.
        """
        agent = self.agent or _agent_of(event.source)
        type_ = _aep_type(event.type)
        members: dict[str, object] = {
            "id": event.id,
            "type": type_,
            "time": event.created_at,
            "source": event.source,
            "agent": agent,
        }
        session = session_of(event) or self.session
        position: tuple[int, int] | None = None
        if type_.startswith("agent."):
            if event.session_id:
                members[_SESSION] = event.session_id
        elif session is None:
            raise StdioError("invalid_envelope", f"{event.type} names no session", event_id=event.id)
        else:
            members["session"] = session
            if not is_command(type_) and type_ != "attention.routed":
                position = self._positions.get(_key(session), (self._epoch, 0))
                members["epoch"], members["seq"] = position
        self._add_rest(members, event, type_)
        try:
            raw = self._adapter.emit(members)
        except InvalidEvent as error:
            raise StdioError("invalid_envelope", error.detail, event_id=event.id) from None
        if session is not None and position is not None:
            self._spend(session, position)
        return raw

    def _add_rest(self, members: dict[str, object], event: StdioEvent, type_: str) -> None:
        if event.causation_id:
            members["cause"] = event.causation_id
        if not is_uri(event.source):
            members["source"] = _source_uri(event.source)
            members[_SOURCE] = event.source
        for name, extension in _EXTENSIONS.items():
            value = getattr(event, name)
            if value:
                members[extension] = value
        payload = bytes(event.payload)
        if payload.startswith(b"{"):
            members["data"] = event.payload
        # Content that no field of the registry stands for must not pass as metadata.
        elif payload != b"null" and self._adapter.ceiling.of(type_) == Capture.FULL:
            members["data"] = {"payload": event.payload}
            members[_BARE] = True

    def _spend(self, session: str, position: tuple[int, int]) -> None:
        """Remember that ``position`` is taken, and forget the sessions that were silent the longest if need be."""
        key = _key(session)
        known = self._positions.pop(key, None)
        if known is None and len(self._positions) >= self._max_sessions:
            for forgotten in list(self._positions)[: max(1, self._max_sessions // 10)]:
                del self._positions[forgotten]
            # Should one of them come back, it starts behind all that it had.
            self._epoch += 1
        epoch, seq = position
        self._positions[key] = (epoch, seq + 1)


def _key(session: str) -> str:
    # Long names are remembered by their hash: should a short one be the same, they count together.
    return session if len(session) <= MAX_NAME_CHARS else safe_name(session)


def _aep_type(type_: str) -> str:
    # The prefix is also put before itself, so that taking it off gives back what came.
    if TYPE.fullmatch(type_) is not None and not type_.startswith(_PREFIX):
        return type_
    return _PREFIX + type_


def _agent_of(source: str) -> str:
    """Return whom ``source`` names: what follows ``agent`` in its path, else its last part, else all of it."""
    if not is_uri(source):
        return source
    path = source.partition("#")[0].partition("?")[0].partition(":")[2]
    parts = [unquote(part) for part in path.split("/") if part]
    if "agent" in parts[1:-1]:
        return parts[parts.index("agent", 1) + 1] or source
    return (parts[-1] if parts else "") or source


def to_stdio(event: Event) -> bytes:
    """Return ``event`` in the stdio dialect, as a line without its ``\\n``.

    Attributes without a place in that dialect keep their names; a type that it cannot spell is spelled otherwise and
    kept in ``aep_type``.
    """
    members = _read_members(event.raw)
    extensions = event.extensions or {}
    session = event.session or extensions.get(_SESSION)
    payload = members.get("data", msgspec.Raw(b"null"))
    if extensions.get(_BARE) is True and "data" in members:
        payload = _read_members(payload).get("payload", payload)
    type_ = event.type.removeprefix(_PREFIX)
    spelled = type_ if STDIO_TYPE.fullmatch(type_) is not None else _spellable(event.type)
    line: dict[str, object] = {
        "aep_version": VERSION,
        "id": event.id,
        "type": spelled,
        "source": _stdio_source(event, extensions.get(_SOURCE)),
        "created_at": event.time,
    }
    if isinstance(session, str):
        line["session_id"] = session
    if event.cause is not None:
        line["causation_id"] = event.cause
    for extension, name in _FIELDS.items():
        value = extensions.get(extension)
        if isinstance(value, str) and (name != "expires_at" or is_time(value)):
            line[name] = value
    if spelled != type_:
        line["aep_type"] = event.type
    line |= {name: value for name, value in members.items() if name not in _RENAMED | _OWN}
    line["payload"] = payload
    return msgspec.json.format(_write(line), indent=-1)


def _source_uri(source: str) -> str:
    return f"aep://stdio/{safe_name(source)}"


def _stdio_source(event: Event, original: object) -> str:
    """Return the source that ``original`` says it was, if the URI bears it out."""
    if isinstance(original, str) and event.source == _source_uri(original):
        return original
    return event.source


def _spellable(type_: str) -> str:
    first, *others = type_.replace("-", "_").split(".")
    return ".".join([first, *(part if part[0].isalpha() else f"n{part}" for part in others)])
