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
from aep_relay.protocol.reporting import WINDOW_SECONDS, Reports
from aep_relay.protocol.stdio import StdioError
from aep_relay.transport import large
from aep_relay.transport.turn import Turn

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import NoReturn

    from aep_relay.hub.relay import Relay
    from aep_relay.journal.tail import Identity, Lines, Source
    from aep_relay.protocol.adapter import Adapter
    from aep_relay.protocol.event import Event
    from aep_relay.protocol.jsonl import Placed

RESTART_SECONDS = 5.0

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class Reading:
    """Turns the lines of many files into Events and reports those that are none.

    The files share one count of positions for the stdio dialect: a session may be written to several.
    """

    def __init__(self, agent: str | None, adapter: Adapter, max_event_bytes: int) -> None:
        seed = time.time_ns() // 1_000_000
        self._mapper = DialectMapper(agent=agent, epoch_seed=seed, adapter=adapter)
        self._max_event_bytes = max_event_bytes
        self._intakes: OrderedDict[Identity, Intake] = OrderedDict()
        self._reports = Reports()
        self.refused_lines = 0
        self.skipped_lines = 0
        """Of a version that is not spoken here."""

    def event(self, source: Source, line: Placed) -> Event | None:
        """Return the Event of ``line`` of the file ``source``, None if it is none."""
        try:
            taken = self.intake(source).take(line.text)
        except StdioError as error:
            if error.code != "unsupported_version":
                self.refused(source, line, error.code, error.detail)
                return None
            # Once for each file: its Intake says nothing of the lines that follow.
            self.skipped_lines += 1
            log.warning(
                "lines of a version that is not supported are skipped",
                path=source.path,
                offset=line.offset,
                detail=error.detail,
            )
            return None
        if taken is None:
            self.skipped_lines += 1
            return None
        return taken.event

    def intake(self, source: Source) -> Intake:
        """Return what reads the lines of ``source``."""
        found = self._intakes.get(source.identity)
        if found is None:
            while len(self._intakes) >= MAX_FILES:
                self._intakes.popitem(last=False)
            found = self._intakes[source.identity] = Intake(self._mapper, self._max_event_bytes)
        return found

    def refused(self, source: Source, line: Placed, code: str, detail: str) -> None:
        """Count a line that was left out, and report it unless many of them were just reported."""
        self.refused_lines += 1
        if self._reports.admit(source.path, trio.current_time()):
            log.warning("line left out", path=source.path, offset=line.offset, code=code, detail=detail)

    async def report(self) -> NoReturn:
        """Report, until cancelled, how many lines were left out besides those that were reported."""
        try:
            while True:
                await trio.sleep(WINDOW_SECONDS)
                self.report_rest(trio.current_time())
        finally:
            self.report_rest()

    def report_rest(self, now: float | None = None) -> None:
        """Report how many lines were left out without being reported; with ``now`` when it is time for that."""
        rest = self._reports.take(now)
        if rest is not None:
            log.warning("more lines left out", lines=rest.lines, files=rest.sources)


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
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.lines.report)
            while True:
                try:
                    await self.tail.run(self.accept)
                except Exception:
                    log.exception("following files failed; it begins again")
                await trio.sleep(RESTART_SECONDS)

    async def accept(self, source: Source, lines: Lines) -> None:
        """Take ``lines`` of the file ``source`` in."""
        turn, relay = Turn(), self._relay
        for line in lines:
            text = line.text
            if isinstance(text, bytes) and len(text) >= large.LARGE_BYTES:
                await large.aside(self.lines.intake(source).ahead, text)
            event = self.lines.event(source, line)
            if event is not None:
                if len(event.raw) >= large.LARGE_BYTES:
                    await large.prepare(relay.fanout, event)
                self._ingest(source, line, event)
            # Whatever it was: what is no Event takes its time as well.
            if turn.over or relay.crowded:
                await self._flush()
                await turn.pass_on()
        await self._flush()
        # There may be lines of many files, a few of each.
        await turn.pass_on()

    def _ingest(self, source: Source, line: Placed, event: Event) -> None:
        refusal = self._relay.ingest(event)
        if refusal is None:
            self.accepted_events += 1
        else:
            self.lines.refused(source, line, refusal.code, refusal.detail)
