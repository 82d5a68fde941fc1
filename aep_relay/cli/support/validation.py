"""Checking a file of Events line by line, then as a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aep_relay.cli.support.lines import opened
from aep_relay.cli.support.output import Cell, Output
from aep_relay.client.payload import payload
from aep_relay.protocol.errors import InvalidEvent
from aep_relay.protocol.event import decode
from aep_relay.protocol.jsonl import OverlongLine
from aep_relay.protocol.lifecycle import Lifecycle
from aep_relay.protocol.schema import Finding, Level, check_payload

if TYPE_CHECKING:
    from aep_relay.protocol.event import Event

MAX_EVENT_BYTES: Final = 4 << 20
"""The default of ``max_event_bytes``: larger ones need a relay that is configured for them."""

_STYLES = {Level.NOTE: "dim", Level.WARNING: "yellow", Level.ERROR: "red"}
_DIALECT = b'"aep_version"'
_DIALECT_HINT = " (the stdio transport's dialect has aep_version: its Events are not these)"


class Report:
    """What there is to say about one file."""

    def __init__(self, output: Output, name: str, *, quiet: bool) -> None:
        self.output = output
        self.name = name
        self.lines = 0
        """Lines that are not blank."""
        self._quiet = quiet
        self._counts = dict.fromkeys(Level, 0)
        self._lifecycle = Lifecycle()

    @property
    def errors(self) -> int:
        """How many errors."""
        return self._counts[Level.ERROR]

    @property
    def warnings(self) -> int:
        """How many warnings."""
        return self._counts[Level.WARNING]

    @property
    def notes(self) -> int:
        """How many notes."""
        return self._counts[Level.NOTE]

    async def run(self) -> None:
        """Check the file. Raises ``Misused`` if it can't be read."""
        with opened(self.name) as lines:
            while (found := await lines.read()) is not None:
                for number, line in found:
                    self.lines += 1
                    self._line(number, line)
        for number, finding in self._lifecycle.finish():
            self._tell(number, None, finding)

    def _line(self, number: int, line: bytes | OverlongLine) -> None:
        if isinstance(line, OverlongLine):
            self._tell(number, None, Finding(Level.ERROR, f"longer than {line.limit_bytes} bytes"))
            return
        try:
            event = decode(line, MAX_EVENT_BYTES)
        except InvalidEvent as error:
            hint = _DIALECT_HINT if _DIALECT in line else ""
            self._tell(number, error.event_id, Finding(Level.ERROR, error.detail + hint))
            return
        for finding in (*check_payload(event), *self._lifecycle.take(number, event, _call_id(event))):
            self._tell(number, event.id, finding)

    def _tell(self, number: int, id_: str | None, finding: Finding) -> None:
        self._counts[finding.level] += 1
        level = finding.level.name.lower()
        if self._quiet and finding.level is Level.NOTE:
            return
        if self.output.json:
            found = {"line": number, "level": level, "id": id_, "path": finding.path, "text": finding.text}
            self.output.document(found)
        else:
            self.output.line(
                f"{self.name}:{number}:", Cell(f"{level}:", _STYLES[finding.level]), str(finding)
            )


def _call_id(event: Event) -> str | None:
    """Return the payload's ``tool.call_id``."""
    tool = payload(event).get("tool") if event.type.startswith("tool.") else None
    call_id = tool.get("call_id") if isinstance(tool, dict) else None
    return call_id if isinstance(call_id, str) else None
