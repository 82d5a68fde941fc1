"""The archive: every relayed Event in ``{root}/{agent}/{session}.jsonl`` (AEP-0003 §3.1.2).

The relay's own task only appends to a queue; a worker thread writes. Invariants: names are encoded so that no
identifier leaves the root and no two share a file; what waits is bounded in bytes, ``debug`` and ``info`` going first;
a disk that is full, slow or gone is reported, counted and survived, and costs the relay nothing else.
"""

from __future__ import annotations

import errno
import functools
from collections import deque
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

import structlog
import trio

from aep_relay.journal.files import LineFiles
from aep_relay.protocol.adapter import safe_name
from aep_relay.protocol.jsonl import one_line
from aep_relay.protocol.registry import SEVERITY_RANK

if TYPE_CHECKING:
    from aep_relay.config import Archive as Settings
    from aep_relay.protocol.event import Event

WRITE_BYTES = 4 * 1024 * 1024
"""So much is handed to the worker thread at once, about."""
WRITE_LINES = 2_000
"""So many lines at most: gathering them takes some milliseconds."""
LINE_OVERHEAD_BYTES = 200
"""What a line that waits costs besides its bytes."""
RETRY_SECONDS = 1.0
REPORT_SECONDS = 60.0
"""Trouble is reported when it begins and then once in so long."""
FINISH_SECONDS = 2.0
"""When the relay ends, what waits has so long to be written."""

AGENT_FILE = "%agent.jsonl"
"""Of an agent's Events without a session: in no safe name is a percent sign followed by these letters."""

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NOTICE = SEVERITY_RANK["notice"]

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class _Line(NamedTuple):
    number: int
    """Its place among all that was ever taken."""
    path: str
    data: bytes
    droppable: bool

    @property
    def cost_bytes(self) -> int:
        return len(self.data) + LINE_OVERHEAD_BYTES


@functools.lru_cache(maxsize=4096)
def path_of(agent: str, session: str | None) -> str:
    """Return where Events of ``agent`` and ``session`` are archived, relative to the root."""
    return f"{safe_name(agent)}/{AGENT_FILE if session is None else f'{safe_name(session)}.jsonl'}"


class Archive:
    """Writes what it is given, later and in each file's order."""

    def __init__(self, root: str, settings: Settings) -> None:
        self.root = root
        self.written_events = 0
        self.lost_events = 0
        """Given up because the disk did not take them in time."""
        self.problem: str | None = None
        """What is wrong now, None as long as writing works."""
        self._files = LineFiles(
            root, max_open_files=settings.max_open_files, max_file_bytes=settings.max_file_bytes
        )
        self._max_pending_bytes = settings.max_pending_bytes
        # Each in the order of its numbers: what goes first is found without a look at the rest.
        self._droppable: deque[_Line] = deque()
        self._essential: deque[_Line] = deque()
        self._taken = 0
        self.pending_bytes = 0
        """What waits to be written, overhead included; what a worker has in hand is not counted."""
        self._more = trio.Event()
        self._ending = False
        self._reported_at = -REPORT_SECONDS

    def keep(self, event: Event) -> None:
        """Take ``event`` to be written (``Relay.keepers``). Neither waits nor fails."""
        data = one_line(event.raw) + b"\n"
        self._taken += 1
        line = _Line(self._taken, path_of(event.agent, event.session), data, event.severity < _NOTICE)
        if self.pending_bytes + line.cost_bytes > self._max_pending_bytes and not self._make_room(line):
            self.lost_events += 1
            return
        self._queue(line).append(line)
        self.pending_bytes += line.cost_bytes
        self._more.set()

    @property
    def _pending_lines(self) -> int:
        return len(self._droppable) + len(self._essential)

    def _queue(self, line: _Line) -> deque[_Line]:
        return self._droppable if line.droppable else self._essential

    def _next(self) -> _Line:
        """Take out the oldest line that waits."""
        queue = self._essential or self._droppable
        if self._droppable and self._droppable[0].number < queue[0].number:
            queue = self._droppable
        return self._take(queue)

    def _take(self, queue: deque[_Line]) -> _Line:
        line = queue.popleft()
        self.pending_bytes -= line.cost_bytes
        return line

    def _make_room(self, line: _Line) -> bool:
        """Give up lines of less weight, and then the oldest, for ``line``; False if it is itself given up."""
        if line.droppable or line.cost_bytes > self._max_pending_bytes:
            return False
        while self.pending_bytes + line.cost_bytes > self._max_pending_bytes:
            self._take(self._droppable or self._essential)
            self.lost_events += 1
        return True

    async def run(self) -> None:
        """Write until cancelled; then what is left, for ``FINISH_SECONDS`` at most."""
        finishing = trio.CancelScope(shield=True)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._write_all, finishing)
            try:
                await trio.sleep_forever()
            finally:
                finishing.deadline = trio.current_time() + FINISH_SECONDS
                self._ending = True
                self._more.set()

    async def _write_all(self, until: trio.CancelScope) -> None:
        with until:
            while self._pending_lines or not self._ending:
                if not self._pending_lines:
                    self._more = trio.Event()
                    await self._more.wait()
                    continue
                await self._write_some()
                if self.problem is not None:
                    if self._ending:
                        break
                    await trio.sleep(RETRY_SECONDS)
            await trio.to_thread.run_sync(self._files.close, abandon_on_cancel=True)
        self.lost_events += self._pending_lines

    async def _write_some(self) -> None:
        by_path: dict[str, list[_Line]] = {}
        size = count = 0
        while self._pending_lines and size < WRITE_BYTES and count < WRITE_LINES:
            line = self._next()
            by_path.setdefault(line.path, []).append(line)
            size += len(line.data)
            count += 1
        unwritten, lost, problem = await trio.to_thread.run_sync(self._write, by_path, abandon_on_cancel=True)
        self.written_events += count - len(unwritten) - lost
        self.lost_events += lost
        for line in reversed(unwritten):
            self._queue(line).appendleft(line)
            self.pending_bytes += line.cost_bytes
        self._note(problem)

    def _write(self, by_path: dict[str, list[_Line]]) -> tuple[list[_Line], int, OSError | None]:
        """Write in the worker thread; return what is to be tried again, in order, how many lines are lost, and why."""
        failed: list[tuple[list[_Line], OSError]] = []
        for path, lines in by_path.items():
            written = 0
            error = OSError(errno.ENOSPC, "the disk took only part of what was written")
            try:
                written = self._files.append(path, [line.data for line in lines])
            except OSError as raised:
                error = raised
            if written < len(lines):
                failed.append((lines[written:], error))
        # What ails one file only must not hold up the others for ever.
        is_general = len(failed) == len(by_path)
        again = [lines for lines, error in failed if is_general or error.errno in _FULL]
        lost = sum(len(lines) for lines, _ in failed) - sum(map(len, again))
        in_order = sorted((line for lines in again for line in lines), key=attrgetter("number"))
        return in_order, lost, failed[0][1] if failed else None

    def _note(self, problem: OSError | None) -> None:
        if problem is None:
            if self.problem is not None:
                log.info("archive writes again", root=self.root, lost_events=self.lost_events)
            self.problem = None
            return
        now = trio.current_time()
        if self.problem is None or now - self._reported_at >= REPORT_SECONDS:
            self._reported_at = now
            log.error(
                "archive cannot be written",
                root=self.root,
                error=problem.strerror,
                pending_bytes=self.pending_bytes,
            )
        self.problem = problem.strerror or "cannot be written"
