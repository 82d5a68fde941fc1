"""How far each followed file was read, kept in a file that is replaced as a whole.

Invariant: a crash leaves the state of before or of after, never half of one; a state that cannot be read is none, and
files are read from their start then.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import structlog

if TYPE_CHECKING:
    from collections.abc import Iterable

HEAD_BYTES = 1024
"""A file is recognised by so much of its start."""
MAX_STATE_BYTES = 16 * 1024 * 1024

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Mark:
    """One file: where it was, its device and inode, up to where it was read, and how it begins."""

    path: str
    identity: tuple[int, int]
    offset: int
    head: bytes = b""
    head_bytes: int = -1
    head_sha256: str = ""
    """Of the first ``head_bytes``, where ``head`` itself is not known."""

    def begins(self, head: bytes) -> bool:
        """Say whether a file that begins with ``head`` may be this one."""
        if self.head_bytes < 0:
            return head.startswith(self.head)
        return len(head) >= self.head_bytes and _hash(head[: self.head_bytes]) == self.head_sha256


class _Entry(msgspec.Struct):
    path: str
    device: int
    inode: int
    offset: int
    head_bytes: int
    head_sha256: str


_decode = msgspec.json.Decoder(list[_Entry]).decode


def _hash(head: bytes) -> str:
    return hashlib.sha256(head).hexdigest()


def load(path: str) -> dict[tuple[int, int], Mark]:
    """Return the marks that the file at ``path`` holds, by device and inode."""
    try:
        with open(path, "rb") as file:
            text = file.read(MAX_STATE_BYTES + 1)
        if len(text) > MAX_STATE_BYTES:
            raise ValueError("longer than any state")
        entries = _decode(text)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        log.warning(
            "state of followed files cannot be read; they are read from their start",
            path=path,
            error=getattr(error, "strerror", None) or str(error),
        )
        return {}
    return {
        (entry.device, entry.inode): Mark(
            entry.path,
            (entry.device, entry.inode),
            max(0, entry.offset),
            head_bytes=max(0, entry.head_bytes),
            head_sha256=entry.head_sha256,
        )
        for entry in entries
    }


def save(path: str, marks: Iterable[Mark]) -> None:
    """Replace the file at ``path`` by one that holds ``marks``. Raises ``OSError``."""
    entries = [
        _Entry(
            mark.path.encode("utf-8", "surrogateescape").decode("utf-8", "replace"),
            *mark.identity,
            mark.offset,
            len(mark.head) if mark.head_bytes < 0 else mark.head_bytes,
            _hash(mark.head) if mark.head_bytes < 0 else mark.head_sha256,
        )
        for mark in marks
    ]
    folder = os.path.dirname(os.path.abspath(path))
    os.makedirs(folder, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=folder, prefix=f".{os.path.basename(path)}-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.encode(entries))
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except OSError:
        os.unlink(name)
        raise
