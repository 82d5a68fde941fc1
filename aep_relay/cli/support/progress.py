"""How far a long input has got, on standard error where that is a terminal.

Nothing is shown of what is over in a second. A bar needs rich and a known length; without them it is a line of numbers
that is written over.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self, TextIO

AFTER_SECONDS: Final = 1.0
EVERY_SECONDS: Final = 0.25


class Progress:
    """Shows Events and bytes as they are done."""

    def __init__(
        self,
        total_bytes: int | None,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total_bytes = total_bytes
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._shown = self._stream.isatty()
        self._next = clock() + AFTER_SECONDS
        self._bar: Any = None
        self._task: Any = None
        self._width = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif self._width:
            self._write("\r" + " " * self._width + "\r")

    def update(self, events: int, done_bytes: int) -> None:
        """Show that so much is done."""
        if not self._shown or self._clock() < self._next:
            return
        self._next = self._clock() + EVERY_SECONDS
        if self._bar is None and self._total_bytes is not None:
            self._bar, self._task = _rich_bar(self._total_bytes, self._stream)
        if self._bar is not None:
            self._bar.update(self._task, completed=done_bytes, events=events)
            return
        share = f" ({done_bytes * 100 // self._total_bytes} %)" if self._total_bytes else ""
        text = f"{events} Events, {done_bytes / (1 << 20):.1f} MiB{share}"
        self._write("\r" + text.ljust(self._width))
        self._width = len(text)

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def _rich_bar(total_bytes: int, stream: TextIO) -> tuple[Any, Any]:
    """Return rich's bar and its task, (None, None) without rich."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar
    except ImportError:
        return None, None
    bar = Bar(
        TextColumn("{task.fields[events]} Events"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TimeRemainingColumn(),
        console=Console(file=stream),
        transient=True,
    )
    bar.start()
    return bar, bar.add_task("emit", total=total_bytes, events=0)
