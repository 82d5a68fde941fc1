"""Lines of either dialect to Events, as one pipe or one file holds them (AEP-0003 §3.1, stdio transport).

Invariants: an AEP-0001 Event passes untouched; a line of the stdio dialect is mapped, in the order of arrival; whatever
else a line is, it is a ``StdioError``, and nothing else is raised. A version that is not spoken here is reported once,
and further lines of it are skipped in silence (AEP-0003 §3.1.3).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from aep_relay.protocol import stdio
from aep_relay.protocol.errors import InvalidEvent, quoted
from aep_relay.protocol.event import decode
from aep_relay.protocol.jsonl import OverlongLine
from aep_relay.protocol.stdio import Dialect, StdioError

if TYPE_CHECKING:
    from aep_relay.protocol.dialect import DialectMapper
    from aep_relay.protocol.event import Event
    from aep_relay.protocol.stdio import StdioEvent

VERSION = "0.1"


class Taken(NamedTuple):
    """What a line held: the Event, and what it was in the stdio dialect, if it was."""

    event: Event
    stdio: StdioEvent | None = None


class _Version(msgspec.Struct, gc=False):
    aep: str


_read_version = msgspec.json.Decoder(_Version).decode


class Intake:
    """Takes in the lines of one source. ``mapper`` may be shared by several."""

    def __init__(self, mapper: DialectMapper, max_event_bytes: int) -> None:
        self._mapper = mapper
        self._max_event_bytes = max_event_bytes
        self.skipped_lines = 0
        """Of a version that is not spoken here, the reported one included."""
        self._ahead: tuple[bytes, Taken | StdioError] | None = None

    def ahead(self, line: bytes) -> None:
        """Do what takes long about ``line``, which is taken next; in another thread if need be. Raises nothing."""
        try:
            self._ahead = line, self._read(line)
        except StdioError as error:
            self._ahead = line, error

    def take(self, line: bytes | OverlongLine) -> Taken | None:
        """Return what ``line`` holds, or None for one that is skipped. Raises ``StdioError``."""
        if isinstance(line, OverlongLine):
            raise stdio.line_too_long(line.limit_bytes)
        try:
            return self._read(line) if self._ahead is None else self._read_ahead(line)
        except StdioError as error:
            if error.code != "unsupported_version":
                raise
            self.skipped_lines += 1
            if self.skipped_lines > 1:
                return None
            raise

    def _read_ahead(self, line: bytes) -> Taken:
        known, self._ahead = self._ahead, None
        if known is None or known[0] is not line:
            return self._read(line)
        if isinstance(known[1], StdioError):
            raise known[1]
        return known[1]

    def _read(self, line: bytes) -> Taken:
        # Most Events don't mention the other dialect: they are read once.
        if b'"aep_version"' not in line:
            try:
                return Taken(decode(line, self._max_event_bytes))
            except InvalidEvent as error:
                raise self._problem(line, error) from None
        if stdio.classify(line) is Dialect.STDIO:
            event = stdio.decode(line, self._max_event_bytes)
            return Taken(decode(self._mapper.to_aep(event)), event)
        try:
            return Taken(decode(line, self._max_event_bytes))
        except InvalidEvent as error:
            raise self._problem(line, error) from None

    def _problem(self, line: bytes, error: InvalidEvent) -> StdioError:
        dialect = stdio.classify(line)
        if dialect is Dialect.AEP:
            try:
                version = _read_version(line).aep
            except (ValueError, RecursionError):
                version = VERSION
            if version != VERSION:
                return StdioError(
                    "unsupported_version",
                    f"aep {quoted(version)} is not supported",
                    event_id=error.event_id,
                    details={"versions": [VERSION]},
                )
            return stdio.error_for(error)
        try:
            # An Event of the stdio dialect that spells its marker in another way, or no Event at all.
            stdio.decode(line, self._max_event_bytes)
        except StdioError as problem:
            return problem
        return stdio.error_for(error)
