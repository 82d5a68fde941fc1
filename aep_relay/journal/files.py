"""Append-only files of lines, many of them, with few open at a time.

Invariants: a line is appended by one ``write`` or, if the disk takes only part of it, taken back, so that no half line
stays; at most ``max_open_files`` descriptors are held; a file that was renamed or removed is not written to any more.
Everything here blocks: it belongs into a worker thread, into one at a time.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

DIRECTORY_MODE = 0o750
FILE_MODE = 0o640

_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class LineFiles:
    """The files below one root, appended to by relative path."""

    def __init__(self, root: str, *, max_open_files: int, max_file_bytes: int) -> None:
        self._root = root
        self._max_open_files = max_open_files
        self._max_file_bytes = max_file_bytes
        self._open: OrderedDict[str, int] = OrderedDict()
        self._lock = threading.Lock()

    def append(self, relative: str, lines: Sequence[bytes]) -> int:
        """Append ``lines``, each with its line break, and return how many the disk took.

        Raises ``OSError`` when it took none; the file then ends as it did before.
        """
        with self._lock:
            written = 0
            while written < len(lines):
                try:
                    taken, asked = self._append_run(relative, lines[written:])
                except OSError:
                    self._let_go(relative)
                    if written:
                        break  # what comes next will fail again when it is tried again, and say why
                    raise
                written += taken
                if taken < asked:
                    break
            return written

    def _append_run(self, relative: str, lines: Sequence[bytes]) -> tuple[int, int]:
        """Append what still belongs into the present file; return how many lines it took, of how many."""
        descriptor = self._descriptor(relative)
        size, bound = os.fstat(descriptor).st_size, self._max_file_bytes
        if bound and size and size + len(lines[0]) > bound:
            descriptor, size = self._rotate(relative), 0
        count = 0
        for line in lines:
            if count and bound and size + len(line) > bound:
                break
            size += len(line)
            count += 1
        return self._write(descriptor, lines[:count]), count

    @staticmethod
    def _write(descriptor: int, lines: Sequence[bytes]) -> int:
        before = os.fstat(descriptor).st_size
        data = b"".join(lines)
        taken = os.write(descriptor, data)
        if taken == len(data):
            return len(lines)
        # The disk is full: what is there of the next line must not stay.
        count = kept = 0
        while kept + len(lines[count]) <= taken:
            kept += len(lines[count])
            count += 1
        os.ftruncate(descriptor, before + kept)
        return count

    def _descriptor(self, relative: str) -> int:
        path = os.path.join(self._root, relative)
        descriptor = self._open.get(relative)
        if descriptor is not None:
            if _is_at(descriptor, path):
                self._open.move_to_end(relative)
                return descriptor
            self._let_go(relative)
        while len(self._open) >= self._max_open_files:
            os.close(self._open.popitem(last=False)[1])
        os.makedirs(os.path.dirname(path), DIRECTORY_MODE, exist_ok=True)
        descriptor = self._open[relative] = os.open(path, _FLAGS, FILE_MODE)
        size = os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":
            # A crash cut the last line off: the next one begins where a line begins.
            os.write(descriptor, b"\n")
        return descriptor

    def _rotate(self, relative: str) -> int:
        """Set the full file aside under the next free number and begin a new one."""
        path = os.path.join(self._root, relative)
        number = 1
        while os.path.lexists(f"{path}.{number}"):
            number += 1
        os.rename(path, f"{path}.{number}")
        self._let_go(relative)
        return self._descriptor(relative)

    def _let_go(self, relative: str) -> None:
        descriptor = self._open.pop(relative, None)
        if descriptor is not None:
            os.close(descriptor)

    def close(self) -> None:
        """Close every file."""
        with self._lock:
            for relative in list(self._open):
                self._let_go(relative)


def _is_at(descriptor: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except OSError:
        return False
