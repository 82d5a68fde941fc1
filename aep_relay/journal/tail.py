"""Following JSONL files: existing and new ones, through rotation, truncation and replacement (AEP-0003 §3.1, §7).

A file is known by device and inode, so that a renamed one is read to its end and the one in its place from its start;
and by how it begins, so that neither a rewritten file nor an inode used again passes for it. Invariants: lines are
handed on in each file's order, a torn last one only when it is whole; what the state file says was read has been
accepted, so that a crash repeats lines, which admission dedupes, and leaves none out. What blocks runs in a worker.
"""

from __future__ import annotations

import contextlib
import glob
import os
import threading
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import structlog
import trio

from aep_relay.journal.state import HEAD_BYTES, Mark, load, save
from aep_relay.protocol.jsonl import LineReader

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from aep_relay.protocol.jsonl import Placed

    Lines = Sequence[Placed]
    Accept = Callable[["Source", Lines], Awaitable[None]]

READ_BYTES = 256 * 1024
LOOK_BYTES = 4 * 1024 * 1024
"""So much is read from all files before what was read is handed on."""
POLL_SECONDS = 0.25
RESCAN_SECONDS = 1.0
"""How soon a new file is noticed, unless looking for files takes long."""
RESCAN_SHARE = 0.1
"""Of the time, so much at most is spent on looking for files."""
SAVE_SECONDS = 1.0
FINISH_SECONDS = 2.0
"""At the end, the state has so long to be saved."""
LINGER_SECONDS = 5.0
"""A file that is gone from its place may still be written to for so long."""
MAX_FILES = 4096

Identity = tuple[int, int]
"""Device and inode."""

T = TypeVar("T")

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class Source(NamedTuple):
    """The file that lines come from. Its path may change while it is followed."""

    path: str
    identity: Identity


@dataclass(slots=True)
class _Followed:
    path: str
    identity: Identity
    descriptor: int
    reader: LineReader
    head: bytes
    """How it begins, as far as it is known."""
    offset: int = 0
    """Up to here lines are complete and accepted."""
    read_to: int = 0
    gone_at: float | None = None
    """Since when it is not in its place any more."""

    def rewind(self, max_line_bytes: int) -> None:
        """Go back to the end of the last whole line."""
        self.read_to = self.offset
        self.reader = LineReader(max_line_bytes, self.offset)

    def mark(self) -> Mark:
        """Return what is to be remembered of it."""
        return Mark(self.path, self.identity, self.offset, self.head[: self.offset])


@dataclass(slots=True)
class _Chunk:
    file: _Followed
    lines: list[Placed]
    offset: int
    ended: bool = field(default=False)


class Tail:
    """Follows the files that match ``patterns`` and hands their lines on.

    ``state`` is the path of the state file, None for none; ``excluded`` is a folder whose files are not followed.
    """

    def __init__(
        self,
        patterns: Sequence[str],
        state: str | None,
        *,
        max_line_bytes: int,
        excluded: str | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._patterns = tuple(patterns)
        self._state = state
        self._max_line_bytes = max_line_bytes
        self._excluded = None if excluded is None else os.path.join(os.path.realpath(excluded), "")
        self._now = now
        self._files: dict[Identity, _Followed] = {}
        self._marks: dict[Identity, Mark] = {}
        """Of files that are not open: from the state file."""
        self._complaints: set[str] = set()
        self._next_scan = self._next_save = 0.0
        self._unsaved = False
        self._scanned = False
        """Whether it was said what is there at the start; what comes later is told as it is found."""
        self._alone = threading.Lock()
        """Held by the worker that is at the files, which may be one that nobody waits for any more."""

    @property
    def files(self) -> int:
        """How many files are followed."""
        return len(self._files)

    async def run(self, accept: Accept) -> None:
        """Follow until cancelled. ``accept`` gets complete lines of a file, and returns when they are accepted."""
        await self.start()
        try:
            while True:
                if not await self.turn(accept):
                    await trio.sleep(POLL_SECONDS)
        finally:
            with trio.move_on_after(FINISH_SECONDS, shield=True):
                await self._aside(self.stop)

    async def _aside(self, do: Callable[[], T]) -> T:
        """Do it in a worker: a disk that is slow, or gone, holds up neither the relay nor its end."""

        def do_alone() -> T:
            with self._alone:
                return do()

        return await trio.to_thread.run_sync(do_alone, abandon_on_cancel=True)

    async def start(self) -> None:
        """Read the state file."""
        if self._state is not None:
            self._marks = await self._aside(partial(load, self._state))

    def stop(self) -> None:
        """Save the state and close all files."""
        if self._unsaved:
            self._save()
        for file in self._files.values():
            os.close(file.descriptor)
        self._files.clear()

    async def turn(self, accept: Accept) -> bool:
        """Look once at every file; return whether there was anything to read."""
        chunks = await self._aside(self._look)
        for chunk in chunks:
            if chunk.lines:
                await accept(Source(chunk.file.path, chunk.file.identity), chunk.lines)
            chunk.file.offset = chunk.offset
            if chunk.ended:
                self._forget(chunk.file)
        self._unsaved = self._unsaved or bool(chunks)
        if self._unsaved and self._now() >= self._next_save:
            await self._aside(self._save)
        return bool(chunks)

    def _look(self) -> list[_Chunk]:
        """Read what there is to read, up to ``LOOK_BYTES``; each file in turn comes first."""
        began = self._now()
        if began >= self._next_scan:
            self._scan()
            took = self._now() - began
            self._next_scan = began + max(RESCAN_SECONDS, took / RESCAN_SHARE)
        chunks: list[_Chunk] = []
        size = 0
        for identity, file in list(self._files.items()):
            chunk = self._read(file)
            if chunk is None:
                continue
            chunks.append(chunk)
            size += READ_BYTES
            if size >= LOOK_BYTES:
                # The next look begins with the files that this one did not come to.
                self._files = self._files_after(identity)
                break
        return chunks

    def _files_after(self, identity: Identity) -> dict[Identity, _Followed]:
        items = list(self._files.items())
        at = list(self._files).index(identity) + 1
        return dict(items[at:] + items[:at])

    def _scan(self) -> None:
        """Open what is new and note what is gone."""
        present: dict[Identity, str] = {}
        for path in self._matching():
            with contextlib.suppress(OSError):
                found = os.stat(path)
                if os.path.isfile(path):
                    present.setdefault((found.st_dev, found.st_ino), path)
        for identity, file in self._files.items():
            file.path = present.get(identity, file.path)
            if identity in present:
                file.gone_at = None
            elif file.gone_at is None:
                file.gone_at = self._now()
        for identity, path in present.items():
            if identity not in self._files:
                if len(self._files) >= MAX_FILES:
                    self._complain("", "too many files to follow", limit=MAX_FILES)
                    break
                self._open(identity, path)
        if not self._scanned:
            self._scanned = True
            if present:
                log.info("files found", patterns=self._patterns, files=len(self._files))
            else:
                log.warning("no file matches yet", patterns=self._patterns)

    def _matching(self) -> Iterator[str]:
        for pattern in self._patterns:
            for path in sorted(glob.iglob(pattern, recursive=True)):
                if self._excluded is None or not os.path.realpath(path).startswith(self._excluded):
                    yield path

    def _complain(self, path: str, text: str, **facts: object) -> None:
        """Say once of a file what keeps it from being followed."""
        if path not in self._complaints and len(self._complaints) < MAX_FILES:
            self._complaints.add(path)
            log.error(text, path=path, **facts)

    def _open(self, identity: Identity, path: str) -> None:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            self._complain(path, "file cannot be read", error=error.strerror)
            return
        self._complaints.discard(path)
        found = os.fstat(descriptor)
        if (found.st_dev, found.st_ino) != identity:
            # Replaced between the look and the opening: the next look finds the new one.
            os.close(descriptor)
            return
        file = _Followed(path, identity, descriptor, LineReader(self._max_line_bytes), b"")
        mark = self._marks.pop(identity, None)
        file.head = os.pread(descriptor, HEAD_BYTES, 0)
        if mark is not None and mark.offset <= found.st_size and mark.begins(file.head):
            file.offset = mark.offset
            file.rewind(self._max_line_bytes)
        self._files[identity] = file
        if self._scanned:
            log.info("file found", path=path)

    def _read(self, file: _Followed) -> _Chunk | None:
        try:
            size = os.fstat(file.descriptor).st_size
            if size == file.read_to:
                return self._at_end(file)
            head = os.pread(file.descriptor, HEAD_BYTES, 0)
            if not head.startswith(file.head[: file.offset]) or size < file.offset:
                log.info("file was truncated or rewritten; it is read from its start", path=file.path)
                file.offset = 0
                file.rewind(self._max_line_bytes)
            elif size < file.read_to or file.read_to - file.offset <= READ_BYTES // 2:
                # What began a torn line may have been taken back, and another one begun: it is read again.
                file.rewind(self._max_line_bytes)
            file.head = head
            data = os.pread(file.descriptor, READ_BYTES, file.read_to)
        except OSError as error:
            self._complain(file.path, "file cannot be read", error=error.strerror)
            return None
        if not data:
            return None
        file.read_to += len(data)
        newline = data.rfind(b"\n")
        offset = file.offset if newline < 0 else file.read_to - (len(data) - newline - 1)
        return _Chunk(file, file.reader.place(data), offset)

    def _at_end(self, file: _Followed) -> _Chunk | None:
        if file.gone_at is None or self._now() - file.gone_at < LINGER_SECONDS:
            return None
        # Nobody writes to it any more: a last line without its newline is as whole as it will get.
        return _Chunk(file, file.reader.place_rest(), file.read_to, ended=True)

    def _forget(self, file: _Followed) -> None:
        os.close(file.descriptor)
        del self._files[file.identity]

    def _save(self) -> None:
        self._next_save = self._now() + SAVE_SECONDS
        self._unsaved = False
        if self._state is None:
            return
        marks = [*list(self._marks.values())[-MAX_FILES:], *(file.mark() for file in self._files.values())]
        try:
            save(self._state, marks)
        except OSError as error:
            self._unsaved = True
            self._complain(self._state, "state of followed files cannot be written", error=error.strerror)
