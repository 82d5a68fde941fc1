"""What of the journal a configuration asks for, put to work on a relay; and another one taken over while it runs.

Invariants: an archive or a table of files that stays as it is goes on undisturbed; what is new begins when what it
replaces has written and remembered what it had; an Event that comes meanwhile waits for the new archive.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import trio

from aep_relay.config.capturing import adapter
from aep_relay.journal.archive import Archive
from aep_relay.journal.following import Following, Reading
from aep_relay.journal.tail import Tail

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from aep_relay.config import Config
    from aep_relay.hub.relay import Relay

_COUNTED = {
    Archive: {
        "archive_events_written": "Events written to the archive",
        "archive_events_lost": "Events that the archive's disk did not take in time",
    },
    Following: {
        "tail_events": "Events taken from followed files",
        "tail_lines_refused": "Lines of followed files that are no Events, or were refused",
        "tail_lines_skipped": "Lines of followed files in a version that is not supported",
    },
}


@dataclass(eq=False, slots=True)
class _Part:
    """An archive or one table of followed files, at work."""

    settings: object
    """What it was made of: another part of the same would do the same."""
    work: Archive | Following
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    ended: trio.Event = field(default_factory=trio.Event)

    def counts(self) -> tuple[int, ...]:
        """Return what it has counted, in the order of ``_COUNTED``."""
        if isinstance(self.work, Archive):
            return self.work.written_events, self.work.lost_events
        lines = self.work.lines
        return self.work.accepted_events, lines.refused_lines, lines.skipped_lines


class Journal:
    """The archive and the followed files of one relay."""

    def __init__(self, config: Config, relay: Relay, flush: Callable[[], Awaitable[None]]) -> None:
        self._relay = relay
        self._flush = flush
        self._parts: list[_Part] = []
        self._ending: list[_Part] = []
        self._ended_counts: Counter[str] = Counter()
        self._nursery: trio.Nursery | None = None
        self._replace(config)

    @property
    def archive(self) -> Archive | None:
        """The archive that is written, None for none."""
        return next((part.work for part in self._parts if isinstance(part.work, Archive)), None)

    @property
    def following(self) -> list[Following]:
        """The tables of files that are followed."""
        return [part.work for part in self._parts if isinstance(part.work, Following)]

    async def run(self) -> None:
        """Do what the configuration asks for, until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            replaced = tuple(self._ending)
            for part in replaced:
                nursery.start_soon(self._run, part, ())
            for part in self._parts:
                nursery.start_soon(self._run, part, replaced)
            await trio.sleep_forever()

    def prepare(self, config: Config) -> Callable[[], None]:
        """Return what takes the archive and the followed files of ``config`` over (``reload.Prepare``)."""
        return lambda: self._replace(config)

    def _replace(self, config: Config) -> None:
        """Have the parts be those of ``config``: end what is not among them, begin what is new."""
        before, self._parts = self._parts, []
        if config.archive.root is not None:
            made = self._kept(before, config.archive) or _Part(
                config.archive, Archive(config.archive.root, config.archive)
            )
            self._parts.append(made)
        for table in config.tail:
            settings = (table, config.archive.root, config.capture)
            self._parts.append(
                self._kept(before, settings)
                or _Part(
                    settings,
                    Following(
                        Tail(
                            table.patterns,
                            table.state,
                            max_line_bytes=config.limits.max_event_bytes,
                            excluded=config.archive.root,  # or what is archived would come in again
                        ),
                        Reading(table.agent, adapter(config.capture), config.limits.max_event_bytes),
                        self._relay,
                        self._flush,
                    ),
                )
            )
        self._hand_over(before, [part for part in self._parts if part not in before])

    def _kept(self, before: list[_Part], settings: object) -> _Part | None:
        """Return the part of ``before`` that is as ``settings`` say, unless it is taken."""
        return next((part for part in before if part.settings == settings and part not in self._parts), None)

    def _hand_over(self, before: list[_Part], begun: list[_Part]) -> None:
        gone = [part for part in before if part not in self._parts]
        keepers = self._relay.keepers
        for part in gone:
            self._ending.append(part)
            if isinstance(part.work, Archive):
                keepers.remove(part.work.keep)
            part.scope.cancel()
        for part in begun:
            if isinstance(part.work, Archive):
                keepers.append(part.work.keep)
            if self._nursery is not None:
                self._nursery.start_soon(self._run, part, tuple(self._ending))

    async def _run(self, part: _Part, before: Iterable[_Part]) -> None:
        """Run ``part`` when those ``before`` it have ended."""
        try:
            # Also if it is replaced meanwhile, or the relay ends: what it was given waits to be written.
            with trio.CancelScope(shield=True):
                for each in before:
                    await each.ended.wait()
            with part.scope:
                await part.work.run()
        finally:
            part.ended.set()
        # Only a part that was replaced comes here: what it has counted stays counted.
        self._ending.remove(part)
        self._ended_counts.update(dict(zip(_COUNTED[type(part.work)], part.counts(), strict=True)))

    def counts(self) -> dict[str, tuple[str, int]]:
        """Return what is counted for metrics: by name, what it is and how much."""
        totals = Counter(self._ended_counts)
        for part in (*self._parts, *self._ending):
            totals.update(dict(zip(_COUNTED[type(part.work)], part.counts(), strict=True)))
        texts = _COUNTED[Archive] | _COUNTED[Following]
        return {name: (texts[name], count) for name, count in totals.items()}
