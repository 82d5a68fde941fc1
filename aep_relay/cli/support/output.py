"""Standard output: JSON for machines, plain lines, or colours and tables where rich is installed and there is a
terminal to show them.

Invariant: what is written to a terminal has passed ``text.shown`` or ``text.shown_json``. To a pipe or a file, an
Event in JSON goes as it was received.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

import msgspec

from aep_relay.cli.support.text import shown, shown_json
from aep_relay.protocol.jsonl import one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

SEVERITY_STYLES = {
    "debug": "dim",
    "info": "",
    "notice": "cyan",
    "warning": "yellow",
    "error": "red",
    "critical": "bold red",
}


@dataclass(frozen=True, slots=True)
class Cell:
    """A piece of text, with a style that rich knows."""

    text: str
    style: str = ""


_EMPTY = Cell("")


class Output:
    """Where a command's result goes."""

    def __init__(self, *, json: bool, stream: TextIO | None = None) -> None:
        self.json = json
        self.stream = sys.stdout if stream is None else stream
        self.is_terminal = self.stream.isatty()
        self._console: Any = _console(self.stream) if self.is_terminal and not json else None
        if hasattr(self.stream, "reconfigure"):
            self.stream.reconfigure(errors="backslashreplace")

    def event(self, raw: bytes) -> None:
        """Write an Event's text on one line."""
        line = one_line(raw).decode("utf-8", "backslashreplace")
        self.stream.write((shown_json(line) if self.is_terminal else line) + "\n")

    def document(self, value: object) -> None:
        """Write a JSON value on one line."""
        self.event(msgspec.json.encode(value))

    def line(self, *cells: Cell | str) -> None:
        """Write a line, its cells one space apart, empty ones left out."""
        made = [Cell(cell) if isinstance(cell, str) else cell for cell in cells if cell not in ("", _EMPTY)]
        if self._console is None:
            self.stream.write(" ".join(shown(cell.text) for cell in made).rstrip() + "\n")
            return
        self._console.print(self._text(made), soft_wrap=True)

    def table(self, headings: Sequence[str], rows: Sequence[Sequence[Cell | str]]) -> None:
        """Write a table."""
        made = [[Cell(cell) if isinstance(cell, str) else cell for cell in row] for row in rows]
        if self._console is not None:
            self._rich_table(headings, made)
            return
        texts = [list(headings), *([shown(cell.text) for cell in row] for row in made)]
        widths = [max(len(row[at]) for row in texts) for at in range(len(headings))]
        for row in texts:
            self.stream.write(
                "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() + "\n"
            )

    def flush(self) -> None:
        """Hand on what is buffered."""
        self.stream.flush()

    def _text(self, cells: Sequence[Cell]) -> Any:
        from rich.text import Text

        return Text(" ").join(Text(shown(cell.text), style=cell.style) for cell in cells)

    def _rich_table(self, headings: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
        from rich.box import SIMPLE_HEAD
        from rich.table import Table

        table = Table(box=SIMPLE_HEAD, pad_edge=False)
        for heading in headings:
            table.add_column(heading, overflow="fold")
        for row in rows:
            table.add_row(*(self._text([cell]) for cell in row))
        self._console.print(table)


def _console(stream: TextIO) -> object | None:
    try:
        from rich.console import Console
    except ImportError:
        return None
    return Console(file=stream, highlight=False, markup=False, emoji=False)
