"""The Event: received bytes to a value, on the path that every Event takes.

``envelope`` reads the JSON; this module checks what the strings say and what an Event's type demands, and
makes the :class:`Event` that the relay works with. Invariants: ``raw`` is what was received, less outer
whitespace, and is what is forwarded; a position exists exactly for Events that own one; the caches below
are bounded in number and length and change nothing but the cost. AEP-0001 §5, §7; AEP-0004 §2.
"""

from __future__ import annotations

from enum import IntEnum
from sys import getsizeof
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from aep_relay.protocol.envelope import Envelope, Extension, Extensions, read, read_together
from aep_relay.protocol.errors import EventTooLarge, InvalidEvent, quoted
from aep_relay.protocol.grammar import TRACEPARENT, TYPE, are_times, is_time, is_uri
from aep_relay.protocol.jsontext import WHITESPACE
from aep_relay.protocol.position import Position
from aep_relay.protocol.registry import (
    CAPTURE_RANK,
    DEFAULT_CAPTURE,
    DEFAULT_SEVERITY,
    SEVERITY_RANK,
    is_command,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Event", "Extension", "Shape", "decode", "decode_together"]

DEFAULT_MAX_EVENT_BYTES: Final = 4 << 20

MAX_TYPE_CHARS: Final = 1024
"""The longest type. Each of its parts may begin what a filter's pattern matches."""

MAX_SOURCE_CHARS: Final = 16 << 10
"""The longest source: its grammar is a pattern of many parts."""

MAX_SESSION_CHARS: Final = 16 << 10
"""The longest session name. It outlives its Events: as a claim, as a position delivered, as one evicted."""

_MAX_CACHED = 4096
_MAX_CACHED_CHARS = 256
_BASE_BYTES = 700
_LEAST_BYTES = len("{{}}")
MAX_TOGETHER_BYTES: Final = 32 << 10
"""The longest text that is decoded together with others."""

_SHORT_BYTES = 1024
"""Attributes that take no more than this altogether may be kept in ``raw`` and as strings, and count once."""

HELD_OVERHEAD_BYTES: Final = 512
"""What describes a plain Event takes about as much, on top of its text."""

_BACKSLASH: Final = ord("\\")

_V = TypeVar("_V")


class Shape(IntEnum):
    """What an Event's type says about its session and position (AEP-0001 §5.2, AEP-0004 §2)."""

    AGENT = 1
    """``agent.*``: no session, no position; live only."""
    COMMAND = 2
    """Addressed to a session by a foreign emitter."""
    ROUTED = 3
    """``attention.routed``: about a session, by a foreign emitter."""
    SESSION = 4
    """Everything else: a position in its session."""


# Each look at a member of an enumeration takes 0.1 µs, more than any other step here.
_AGENT, _SESSION = Shape.AGENT, Shape.SESSION


class Event(msgspec.Struct, gc=False, eq=False):
    """One valid Event. Made by :func:`decode` and :func:`decode_together` only; nothing but ``variants`` changes
    afterwards.

    ``raw`` is the text to forward. ``epoch`` is 0 when absent; ``severity`` and ``capture`` are ranks of
    ``registry``, their defaults applied. ``position`` is ``(epoch, seq)`` for ``Shape.SESSION`` and else
    ``None``. ``key`` is ``(source, id)``. ``held_bytes`` is what holding it counts for: about how much memory
    it takes, down-leveled texts and strings that repeat not counted. ``variants`` holds the down-leveled texts
    made so far, by capture rank.
    """

    raw: bytes
    id: str
    type: str
    time: str
    source: str
    agent: str
    session: str | None
    seq: int | None
    epoch: int
    subject: str | None
    run: str | None
    step: str | None
    cause: str | None
    severity: int
    capture: int
    extensions: Extensions | None
    shape: Shape
    position: Position | None
    key: tuple[str, str]
    held_bytes: int
    variants: dict[int, bytes] | None = None


_types: dict[str, tuple[str, Shape]] = {}
_sources: dict[str, str] = {}
_names: dict[str, str] = {}


def decode(raw: bytes, max_event_bytes: int = DEFAULT_MAX_EVENT_BYTES) -> Event:
    """Return the Event that ``raw`` holds: one JSON object in UTF-8, whitespace around it allowed.

    Raises :class:`EventTooLarge` beyond ``max_event_bytes`` and :class:`InvalidEvent` for anything that is
    not a valid envelope (AEP-0001 §5).
    """
    raw = raw.strip(WHITESPACE)
    if len(raw) > max_event_bytes:
        raise EventTooLarge(f"an Event is at most {max_event_bytes} bytes, this one has {len(raw)}")
    envelope, extensions = read(raw)
    if not is_time(envelope.time):
        problem = f"time {quoted(envelope.time)} is not an RFC 3339 date and time with a timezone"
        raise InvalidEvent(problem, event_id=envelope.id)
    return _made(raw, envelope, extensions, _held_bytes(raw, envelope, extensions))


def _made(raw: bytes, envelope: Envelope, extensions: Extensions | None, held_bytes: int) -> Event:
    """Return the Event of ``raw``, whose JSON and time are right. Raises :class:`InvalidEvent` for all else."""
    type_, shape = _types.get(envelope.type) or _know_type(envelope)
    source = _sources.get(envelope.source) or _know_source(envelope)
    session, seq, epoch, id_ = envelope.session, envelope.seq, envelope.epoch or 0, envelope.id
    if shape is not _SESSION or session is None or seq is None or envelope.traceparent is not None:
        _check(envelope, shape)
    return Event(
        raw,
        id_,
        type_,
        envelope.time,
        source,
        _names.get(envelope.agent) or _remember(_names, envelope.agent, envelope.agent),
        session and (_names.get(session) or _know_session(envelope, session)),
        seq,
        epoch,
        envelope.subject,
        envelope.run,
        envelope.step,
        envelope.cause,
        DEFAULT_SEVERITY if envelope.severity is None else SEVERITY_RANK[envelope.severity],
        DEFAULT_CAPTURE if envelope.capture is None else CAPTURE_RANK[envelope.capture],
        extensions,
        shape,
        None if seq is None else (epoch, seq),
        (source, id_),
        held_bytes,
    )


def decode_together(
    texts: Sequence[bytes], joined: bytes, max_event_bytes: int = DEFAULT_MAX_EVENT_BYTES
) -> list[Event] | None:
    """Return the Events that ``texts`` hold, decoded at about half of what ``decode`` takes for each.

    ``joined`` is the texts, at least one, with a line feed between them. None if one of them is not valid, or written
    in a way that has to be looked at by itself: then ``decode`` says what there is to say.
    """
    lengths = list(map(len, texts))
    if min(lengths) < _LEAST_BYTES or max(lengths) > min(max_event_bytes, MAX_TOGETHER_BYTES):
        return None
    found = read_together(texts, joined)
    if found is None:
        return None
    envelopes, extensions = found
    if not are_times([envelope.time for envelope in envelopes]):
        return None
    # Then no string takes more memory than it takes room in the text.
    is_plain = joined.isascii() and (_BACKSLASH not in joined or b"\\u" not in joined)
    events: list[Event] = []
    try:
        for index, (raw, envelope, size) in enumerate(zip(texts, envelopes, lengths, strict=True)):
            extra = extensions.get(index)
            if is_plain and size <= _SHORT_BYTES and extra is None:
                held_bytes = size + HELD_OVERHEAD_BYTES
            else:
                held_bytes = _held_bytes(raw, envelope, extra)
            events.append(_made(raw, envelope, extra, held_bytes))
    except InvalidEvent:
        return None
    return events


def _held_bytes(raw: bytes, envelope: Envelope, extensions: Extensions | None) -> int:
    """Return about how much memory the Event takes.

    A short ``raw`` may stand for several times its length: hundreds of bytes of objects, four bytes for each
    character of a string that holds one emoji, and up to forty for each byte spent on an extension attribute.
    """
    # A byte's number is looked for many times faster than a string.
    if extensions is None and raw.isascii() and (_BACKSLASH not in raw or b"\\u" not in raw):
        data, size = envelope.data, len(raw)
        if size <= _SHORT_BYTES or (data is not msgspec.UNSET and size - len(data) <= _SHORT_BYTES):
            # No string of it can take more memory than it takes room in the text.
            return size + HELD_OVERHEAD_BYTES
    own = (raw, envelope.id, envelope.time, envelope.subject, envelope.run, envelope.step, envelope.cause)
    total = _BASE_BYTES + sum(map(getsizeof, own))
    names = (envelope.type, envelope.source, envelope.agent, envelope.session)
    total += sum(getsizeof(name) for name in names if name is not None and len(name) > _MAX_CACHED_CHARS)
    if extensions is not None:
        total += getsizeof(extensions)
        total += sum(getsizeof(name) + getsizeof(value) for name, value in extensions.items())
    return total


def _check(envelope: Envelope, shape: Shape) -> None:
    """Raise :class:`InvalidEvent` if the scope is not the one of ``shape`` or the trace context is malformed."""
    session, seq = envelope.session, envelope.seq
    problem: str | None = None
    if envelope.traceparent is not None and TRACEPARENT.fullmatch(envelope.traceparent) is None:
        problem = "traceparent is malformed"
    elif shape is _AGENT:
        if session is not None or seq is not None or envelope.run is not None or envelope.step is not None:
            problem = f"{envelope.type} is agent-scoped: it has no session, run, step or seq"
    elif session is None:
        problem = "session is missing"
    elif shape is _SESSION:
        if seq is None:
            problem = "seq is missing"
    elif seq is not None:
        problem = f"{envelope.type} holds no position: it has no seq"
    if problem is not None:
        raise InvalidEvent(problem, event_id=envelope.id)


def _know_type(envelope: Envelope) -> tuple[str, Shape]:
    type_ = envelope.type
    if len(type_) > MAX_TYPE_CHARS:
        raise InvalidEvent(f"type is longer than {MAX_TYPE_CHARS} characters", event_id=envelope.id)
    if TYPE.fullmatch(type_) is None:
        raise InvalidEvent(f"type {quoted(type_)} is of no known category or form", event_id=envelope.id)
    if type_.startswith("agent."):
        shape = Shape.AGENT
    elif is_command(type_):
        shape = Shape.COMMAND
    else:
        shape = Shape.ROUTED if type_ == "attention.routed" else Shape.SESSION
    return _remember(_types, type_, (type_, shape))


def _know_source(envelope: Envelope) -> str:
    source = envelope.source
    if len(source) > MAX_SOURCE_CHARS:
        raise InvalidEvent(f"source is longer than {MAX_SOURCE_CHARS} characters", event_id=envelope.id)
    if not is_uri(source):
        raise InvalidEvent(f"source {quoted(source)} is not a URI with a scheme", event_id=envelope.id)
    return _remember(_sources, source, source)


def _know_session(envelope: Envelope, session: str) -> str:
    if len(session) > MAX_SESSION_CHARS:
        raise InvalidEvent(f"session is longer than {MAX_SESSION_CHARS} characters", event_id=envelope.id)
    return _remember(_names, session, session)


def _remember(cache: dict[str, _V], name: str, value: _V) -> _V:
    """Keep ``value`` for the Events that repeat ``name``."""
    if len(name) <= _MAX_CACHED_CHARS:
        if len(cache) >= _MAX_CACHED:
            cache.clear()
        cache[name] = value
    return value
