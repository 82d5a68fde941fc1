"""How fast the machine is at the moment: a bare ``msgspec`` decode, timed on the core of the measured server.

The speed of a shared machine changes by half and more within seconds, for all programs alike, so a cost says
little without what a known piece of work cost right before and right after. A decode of Events into their
members is that work: it checks little, keeps nothing, and enters no kernel.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import msgspec

from . import machine
from .events import Session
from .report import Yardstick

_T = TypeVar("_T")

# What one decode took on the machine the targets were set on, in microseconds.
REFERENCE_US = 1.1
# So many distinct Events that they do not stay in a core's own cache; they take 10 to 20 ms.
_EVENTS = 12_000
# A piece takes less than a millisecond, its first part unmeasured: an idle core finds its caches cold.
_PIECE_WARM_EVENTS, _PIECE_EVENTS = 100, 500


class Envelope(msgspec.Struct):
    """The attributes of an Event, its data left as text."""

    aep: str
    id: str
    type: str
    time: str
    source: str
    agent: str
    session: str
    seq: int
    run: str
    step: str
    severity: str
    capture: str
    data: msgspec.Raw
    epoch: int = 0


@functools.cache
def _events() -> list[bytes]:
    return Session("s_pace").events(_EVENTS)


def _decode_us(events: Sequence[bytes], warm: int = 0) -> float:
    """CPU microseconds of one decode of ``events``, the first ``warm`` of them not counted."""
    decode = msgspec.json.Decoder(Envelope).decode
    for event in itertools.islice(events, warm):
        decode(event)
    started = time.thread_time_ns()
    for event in itertools.islice(events, warm, None):
        decode(event)
    return (time.thread_time_ns() - started) / 1e3 / (len(events) - warm)


def around(core: machine.Core, run: Callable[[], _T]) -> tuple[_T, float]:
    """Call ``run``; returns its result and the microseconds of a decode on ``core``.

    That is the mean of what was measured right before and right after.
    """
    with machine.pinned(core):
        before = _decode_us(_events())
    result = run()
    with machine.pinned(core):
        after = _decode_us(_events())
    return result, (before + after) / 2


def pieces(core: machine.Core) -> Iterator[float]:
    """One measurement of a decode for each value asked for, each short, for a core that is to stay idle."""
    size = _PIECE_WARM_EVENTS + _PIECE_EVENTS
    for start in itertools.cycle(range(0, _EVENTS - size, size)):
        with machine.pinned(core):
            decode_us = _decode_us(_events()[start : start + size], _PIECE_WARM_EVENTS)
        yield decode_us


def yardstick(decode_us: Sequence[float]) -> Yardstick:
    """What ``around`` or ``pieces`` found beside each run of a figure."""
    return Yardstick("bare msgspec decode", decode_us, REFERENCE_US)
