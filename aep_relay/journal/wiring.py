"""What of the journal a configuration asks for, put to work on a relay."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aep_relay.config.capturing import adapter
from aep_relay.journal.archive import Archive
from aep_relay.journal.following import Following, Reading
from aep_relay.journal.tail import Tail

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aep_relay.config import Config
    from aep_relay.hub.relay import Relay


class Journal:
    """The archive and the followed files of one relay."""

    def __init__(self, config: Config, relay: Relay, flush: Callable[[], Awaitable[None]]) -> None:
        settings, limits = config.archive, config.limits
        self.archive = None if settings.root is None else Archive(settings.root, settings)
        self.following = [
            Following(
                Tail(
                    table.patterns,
                    table.state,
                    max_line_bytes=limits.max_event_bytes,
                    excluded=settings.root,  # or what is archived would come in again
                ),
                Reading(table.agent, adapter(config.capture), limits.max_event_bytes),
                relay,
                flush,
            )
            for table in config.tail
        ]
        self.tasks: list[Callable[[], Awaitable[None]]] = [each.run for each in self.following]
        """What has to run as long as the relay."""
        if self.archive is not None:
            relay.keepers.append(self.archive.keep)
            self.tasks.append(self.archive.run)

    def counts(self) -> dict[str, tuple[str, int]]:
        """Return what is counted for metrics: by name, what it is and how much."""
        found: dict[str, tuple[str, int]] = {}
        if self.archive is not None:
            found["archive_events_written"] = ("Events written to the archive", self.archive.written_events)
            found["archive_events_lost"] = (
                "Events that the archive's disk did not take in time",
                self.archive.lost_events,
            )
        if self.following:
            found["tail_events"] = (
                "Events taken from followed files",
                sum(each.accepted_events for each in self.following),
            )
            found["tail_lines_refused"] = (
                "Lines of followed files that are no Events, or were refused",
                sum(each.lines.refused_lines for each in self.following),
            )
            found["tail_lines_skipped"] = (
                "Lines of followed files in a version that is not supported",
                sum(each.lines.skipped_lines for each in self.following),
            )
        return found
