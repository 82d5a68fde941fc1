"""``[[tail]]``: the lines of followed files, into the relay (AEP-0003 §3.1, §8.1).

Whoever may write the files is trusted with what is in them, but for commands: those need an authenticated connection,
and the relay refuses them here. A line that is no Event is reported and left out; it holds up nothing.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import TYPE_CHECKING

import structlog
import trio

from aep_relay.journal.tail import MAX_FILES, Tail
from aep_relay.protocol.dialect import DialectMapper
from aep_relay.protocol.intake import Intake
from aep_relay.protocol.stdio import StdioError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aep_relay.hub.relay import Relay
    from aep_relay.journal.tail import Lines
    from aep_relay.protocol.adapter import Adapter
    from aep_relay.protocol.event import Event
    from aep_relay.protocol.jsonl import OverlongLine

SLICE_EVENTS = 128
"""So many Events are taken in before other tasks get a turn."""
RESTART_SECONDS = 5.0
REPORT_SECONDS = 10.0
"""Of bad lines of one file, one is reported in so long."""

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class Reading:
    """Turns the lines of many files into Events and reports those that are none.

    The files share one count of positions for the stdio dialect: a session may be written to several.
    """

    def __init__(self, agent: str | None, adapter: Adapter, max_event_bytes: int) -> None:
        seed = time.time_ns() // 1_000_000
        self._mapper = DialectMapper(agent=agent, epoch_seed=seed, adapter=adapter)
        self._max_event_bytes = max_event_bytes
        self._intakes: OrderedDict[str, Intake] = OrderedDict()
        self._reported: dict[str, float] = {}
        self.refused_lines = 0
        self.skipped_lines = 0
        """Of a version that is not spoken here."""

    def event(self, path: str, line: bytes | OverlongLine) -> Event | None:
        """Return the Event of ``line`` of the file at ``path``, None if it is none."""
        intake = self._intakes.get(path)
        if intake is None:
            while len(self._intakes) >= MAX_FILES:
                self._reported.pop(self._intakes.popitem(last=False)[0], None)
            intake = self._intakes[path] = Intake(self._mapper, self._max_event_bytes)
        try:
            taken = intake.take(line)
        except StdioError as error:
            if error.code == "unsupported_version":
                self.skipped_lines += 1
                log.warning(
                    "lines of a version that is not supported are skipped", path=path, detail=error.detail
                )
            else:
                self.refused(path, error.code, error.detail)
            return None
        if taken is None:
            self.skipped_lines += 1
            return None
        return taken.event

    def refused(self, path: str, code: str, detail: str) -> None:
        """Count a line that was left out, and report it unless one of its file was just reported."""
        self.refused_lines += 1
        now = trio.current_time()
        if now - self._reported.get(path, -REPORT_SECONDS) >= REPORT_SECONDS:
            self._reported[path] = now
            log.warning(
                "line left out", path=path, code=code, detail=detail, refused_lines=self.refused_lines
            )


class Following:
    """One table of ``[[tail]]`` at work."""

    def __init__(
        self, tail: Tail, lines: Reading, relay: Relay, flush: Callable[[], Awaitable[None]]
    ) -> None:
        self.tail = tail
        self.lines = lines
        self.accepted_events = 0
        self._relay = relay
        self._flush = flush

    async def run(self) -> None:
        """Follow until cancelled. Whatever goes wrong, those who are connected must not notice."""
        while True:
            try:
                await self.tail.run(self.accept)
            except Exception:
                log.exception("following files failed; it begins again")
            await trio.sleep(RESTART_SECONDS)

    async def accept(self, path: str, lines: Lines) -> None:
        """Take ``lines`` of the file at ``path`` in."""
        taken = 0
        for line in lines:
            event = self.lines.event(path, line)
            if event is None:
                continue
            refusal = self._relay.ingest(event)
            if refusal is not None:
                self.lines.refused(path, refusal.code, refusal.detail)
                continue
            self.accepted_events += 1
            taken += 1
            if taken == SLICE_EVENTS or self._relay.crowded:
                taken = 0
                await self._flush()
                await trio.lowlevel.checkpoint()
        await self._flush()
