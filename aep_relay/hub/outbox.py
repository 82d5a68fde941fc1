"""What one connection has yet to be sent, and the batches that connections share.

A ``Batch`` is a run of framed Events that was assembled once for all consumers of a cohort. A connection that keeps up
never queues one: the batch goes straight to its socket. One that does not keep up queues references to batches, so
that a thousand slow consumers hold the same bytes.

Invariants (AEP-0003 §8.4):

* A frame goes out whole or the connection is aborted. What follows a cut is only ever put behind a whole frame.
* Limits are compared with ``weight_bytes``: what is queued, and what very many batches take besides their frames.
* Above ``soft_limit_bytes`` frames of ``debug`` and ``info`` Events are dropped and counted; ``offer`` answers False
  when ``hard_limit_bytes`` was exceeded before the batch came, and then the connection has to end.
"""

from __future__ import annotations

from collections import deque
from itertools import islice, repeat
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from aep_relay.hub.positions import higher, highest_since

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aep_relay.hub.positions import Track
    from aep_relay.protocol.position import Position

    Key = tuple[object, str | None]
    """A scope, which is a group, a subscription or ``ANY``, and a session."""

SEND_BYTES = 256 * 1024
"""Up to this much is joined for one ``send`` of a connection that has fallen behind."""

BATCH_OVERHEAD_BYTES = 1024
"""What describes a batch takes up to so much, on top of its frames."""

FREE_BATCHES = 1000
"""So many of them in a queue count for nothing but their frames: less than another MiB. Beyond, a queue of single small
Events would take several times what it counts for."""

MAX_SKIPS = 4096
"""Sessions for which a connection remembers what was dropped."""

ANY: Final = "any"
"""The scope of an Event that serves more subscriptions of a connection than are told apart: any of them."""

BROKEN = -1
"""What a sink's ``send`` answers when the connection is gone."""


class Mark(msgspec.Struct, frozen=True, gc=False):
    """What has to be remembered of a framed Event. A struct is made in a third of the time a tuple with names takes."""

    session: str | None
    position: Position | None
    """What was delivered when it has gone out; None for an Event without a position."""
    bound: Position | None
    """As long as it has not gone out, a position from here up must not be reported as delivered."""
    droppable: bool
    """Severity ``debug`` or ``info``."""
    stamp: int
    """Arrival stamp: rises by one with every Event the relay fans out."""


class Skip(NamedTuple):
    """What a slow connection had been sent of a session when Events of it were dropped."""

    stamp: int
    """Of the Event dropped last."""
    before: Track | None
    """What its group had delivered before the first drop."""
    kept: Position | None
    """Highest position delivered between drops."""


class Batch(msgspec.Struct, eq=False):
    """Framed Events in order, shared by all that are to receive them. A struct as well: one may be made of each Event,
    for each of thousands of cohorts."""

    scope: object
    """Whose subscription all frames serve, when they serve the same."""
    frames: list[bytes] = []
    marks: list[Mark] = []
    notices: int = 0
    """How many of the frames are no Events, but tell of a loss."""
    scopes: list[tuple[object, ...]] | None = None
    """For each frame the groups or subscriptions it serves, where that differs."""
    before: dict[Key, Track | None] = {}
    """By scope and session: what had been delivered before this batch."""
    size_bytes: int = 0
    _joined: bytes | None = None
    _essential: Batch | None = None
    _bounds: dict[object, dict[str | None, Position]] | None = None
    _drops: dict[Key, tuple[int | None, Position | None]] | None = None

    @property
    def events(self) -> int:
        """How many Events there are in it."""
        return len(self.frames) - self.notices

    def joined(self) -> bytes:
        """Return all frames as one run of bytes, joined once."""
        data = self._joined
        if data is None:
            frames = self.frames
            data = self._joined = frames[0] if len(frames) == 1 else b"".join(frames)
        return data

    def data(self) -> bytes:
        """Return all frames as one run of bytes, for one consumer that has fallen behind."""
        return self._joined if self._joined is not None else b"".join(self.frames)

    def release(self) -> None:
        """Give the joined bytes up; the frames stay for those that still need them."""
        self._joined = None

    def essential(self) -> Batch:
        """Return this batch without its ``debug`` and ``info`` Events, made once."""
        kept = self._essential
        if kept is None:
            kept = self
            if any(mark.droppable for mark in self.marks):
                kept = Batch(self.scope)
                keep = [index for index, mark in enumerate(self.marks) if not mark.droppable]
                kept.frames = [self.frames[index] for index in keep]
                kept.marks = [self.marks[index] for index in keep]
                if self.scopes is not None:
                    kept.scopes = [self.scopes[index] for index in keep]
                kept.before = self.before
                kept.notices = self.notices
                kept.size_bytes = sum(map(len, kept.frames))
            self._essential = kept
        return kept

    def drops(self) -> dict[Key, tuple[int | None, Position | None]]:
        """Return, made once, what dropping the ``debug`` and ``info`` Events means for each scope and session: the
        stamp of the last that goes, None if all stay, and the highest position of those that stay."""
        found = self._drops
        if found is None:
            found = self._drops = {}
            for _, mark, scopes in self.entries():
                if mark.position is not None:
                    for scope in scopes:
                        key = (scope, mark.session)
                        stamp, kept = found.get(key, (None, None))
                        if mark.droppable:
                            found[key] = (mark.stamp, kept)
                        else:
                            found[key] = (stamp, higher(kept, mark.position))
        return found

    def bounds(self) -> dict[object, dict[str | None, Position]]:
        """Return, made once, the lowest position that must not be reported for each scope and its sessions as long as
        nothing of this batch has gone out."""
        found = self._bounds
        if found is None:
            found = self._bounds = {}
            for scopes, lowest in self._lowest().items():
                for scope in scopes:
                    known = found.setdefault(scope, {})
                    if known:
                        for session, bound in lowest.items():
                            known[session] = min(bound, known.get(session, bound))
                    else:
                        known.update(lowest)
        return found

    def _lowest(self) -> dict[tuple[object, ...], dict[str | None, Position]]:
        """Return the lowest bounds by what serves the same scopes, and session: there may be tens of thousands of
        Events in a queue when it has to be known."""
        found: dict[tuple[object, ...], dict[str | None, Position]] = {}
        last: tuple[object, ...] = ()
        lowest: dict[str | None, Position] = {}
        for mark, scopes in zip(self.marks, self.scopes or repeat((self.scope,)), strict=False):
            if scopes is not last:
                last = scopes
                lowest = found.setdefault(scopes, {})
            bound = mark.bound
            if bound is not None:
                known = lowest.get(mark.session)
                if known is None or bound < known:
                    lowest[mark.session] = bound
        return found

    def entries(self) -> Iterator[tuple[bytes, Mark, tuple[object, ...]]]:
        """Yield frame, mark and scopes of each Event."""
        whole = (self.scope,)
        for index, frame in enumerate(self.frames):
            yield frame, self.marks[index], self.scopes[index] if self.scopes is not None else whole


class Outbox:
    """The queue of one connection: empty as long as it keeps up."""

    __slots__ = (
        "dropped_events",
        "hard_limit_bytes",
        "head_sent_bytes",
        "queue",
        "queued_batches",
        "queued_bytes",
        "sent_bytes",
        "skips",
        "soft_limit_bytes",
    )

    def __init__(self, soft_limit_bytes: int, hard_limit_bytes: int) -> None:
        self.soft_limit_bytes = soft_limit_bytes
        self.hard_limit_bytes = hard_limit_bytes
        self.queue: deque[Batch | bytes] | None = None
        self.queued_bytes = 0
        self.queued_batches = 0
        self.head_sent_bytes = 0
        self.sent_bytes = 0
        self.dropped_events = 0
        self.skips: dict[Key, Skip] | None = None

    def __bool__(self) -> bool:
        return self.queue is not None

    @property
    def weight_bytes(self) -> int:
        """What the queue counts for toward its limits."""
        return self.queued_bytes + max(0, self.queued_batches - FREE_BATCHES) * BATCH_OVERHEAD_BYTES

    def offer(self, batch: Batch) -> bool:
        """Queue ``batch``; False when the hard limit had been exceeded before it came."""
        queued = self.weight_bytes
        if queued > self.soft_limit_bytes:
            if queued > self.hard_limit_bytes:
                return False
            kept = batch.essential()
            if kept is not batch:
                self._skip(batch, len(batch.frames) - len(kept.frames))
                batch = kept
                if not batch.frames:
                    return True
        self._append(batch, batch.size_bytes)
        return True

    def force(self, item: Batch | bytes) -> None:
        """Queue ``item`` whatever the limits: a farewell, and what a connection that ends was not sent."""
        self._append(item, _size(item))

    def _skip(self, batch: Batch, count: int) -> None:
        self.dropped_events += count
        if self.skips is None or len(self.skips) > MAX_SKIPS:
            # Forgetting one means only that the reported position passes over a dropped Event.
            self.skips = {}
        skips = self.skips
        for key, (stamp, kept) in batch.drops().items():
            skip = skips.get(key)
            if stamp is None:
                if skip is not None:
                    skips[key] = skip._replace(kept=higher(skip.kept, kept))
                continue
            before = batch.before.get(key)
            if skip is None:
                skips[key] = Skip(stamp, before, kept)
            else:
                between = higher(highest_since(before, skip.stamp), kept)
                skips[key] = Skip(stamp, skip.before, higher(skip.kept, between))

    def push(self, data: bytes) -> bool:
        """Queue ``data``, whole frames that are not Events of a subscription; False above the hard limit."""
        if self.weight_bytes > self.hard_limit_bytes:
            return False
        self._append(data, len(data))
        return True

    def _append(self, item: Batch | bytes, size_bytes: int) -> None:
        if self.queue is None:
            self.queue = deque()
        self.queue.append(item)
        self.queued_bytes += size_bytes
        if isinstance(item, Batch):
            self.queued_batches += 1

    def partly_sent(self, item: Batch | bytes, sent_bytes: int) -> None:
        """Queue ``item``, of which the socket has taken ``sent_bytes`` already, as the head of an empty queue."""
        self._append(item, _size(item) - sent_bytes)
        self.head_sent_bytes = sent_bytes

    def drain(self, send: Callable[[bytes | memoryview], int]) -> bool:
        """Send what the socket takes without blocking, at most one run; True when the queue is empty now.

        ``send`` answers how many bytes were taken, 0 when it would block and ``BROKEN`` when the connection is gone;
        then the queue is discarded.
        """
        queue = self.queue
        if queue is None:
            return True
        sent = send(self._run(queue))
        if sent == BROKEN:
            self.discard()
            return True
        self.sent_bytes += sent
        self.queued_bytes -= sent
        left = self.head_sent_bytes + sent
        while queue:
            size = _size(queue[0])
            if left < size:
                self.head_sent_bytes = left
                return False
            left -= size
            if isinstance(queue.popleft(), Batch):
                self.queued_batches -= 1
        self.queue = None
        self.head_sent_bytes = 0
        return True

    def _run(self, queue: deque[Batch | bytes]) -> bytes | memoryview:
        head = memoryview(_data(queue[0]))[self.head_sent_bytes :]
        if len(head) >= SEND_BYTES or len(queue) == 1:
            return head
        parts: list[bytes | memoryview] = [head]
        size = len(head)
        for item in islice(queue, 1, None):
            parts.append(_data(item))
            size += _size(item)
            if size >= SEND_BYTES:
                break
        return b"".join(parts)

    def discard(self) -> None:
        """Drop everything."""
        self.queue = None
        self.queued_bytes = 0
        self.queued_batches = 0
        self.head_sent_bytes = 0

    def unsent(self) -> Iterator[tuple[Batch, int]]:
        """Yield each queued batch with the index of its first frame of which no byte was sent."""
        for number, item in enumerate(self.queue or ()):
            if isinstance(item, Batch):
                yield item, (_begun(item, self.head_sent_bytes)[0] if number == 0 else 0)

    def cut(self) -> None:
        """Drop everything but the rest of the frame that was begun, which a later frame may then follow."""
        queue, sent = self.queue, self.head_sent_bytes
        self.discard()
        if queue is None or sent == 0:
            return
        head = queue[0]
        rest = _begun(head, sent)[1] if isinstance(head, Batch) else head[sent:]
        if rest:
            self._append(rest, len(rest))
            # The rest must come out whole before anything else is counted as begun.
            self.head_sent_bytes = 0


def _size(item: Batch | bytes) -> int:
    return item.size_bytes if isinstance(item, Batch) else len(item)


def _data(item: Batch | bytes) -> bytes:
    return item.data() if isinstance(item, Batch) else item


def _begun(batch: Batch, sent_bytes: int) -> tuple[int, bytes]:
    """Return the index of the first frame not begun, and the rest of the frame before it that is still unsent."""
    end = 0
    for index, frame in enumerate(batch.frames):
        if end >= sent_bytes:
            return index, b""
        end += len(frame)
        if end > sent_bytes:
            return index + 1, frame[len(frame) - (end - sent_bytes) :]
    return len(batch.frames), b""
