"""A consumer that checks how its connection ends: the positions it is told, and that it can resume by them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from aep_relay.hub import cohort
from aep_relay.protocol.position import ResumePoint
from tests.hub.model import BEFORE_ALL
from tests.hub.observed import Consumer, Entry, Sub

if TYPE_CHECKING:
    from aep_relay.protocol.position import Position

LOWEST = (0, 0)


class ResumingConsumer(Consumer):
    """Resumes when it is ended, and is sent everything that it was owed."""

    def ended(self) -> tuple[list[dict[str, Any]], list[Entry]]:
        delivered, unsent = super().ended()
        if self.is_websocket:
            self._check_positions(delivered, unsent)
            self._check_resumption(delivered)
        return delivered, unsent

    def _check_positions(self, delivered: list[dict[str, Any]], unsent: list[Entry]) -> None:
        reported = {(item["sub"], item["session"]): (item["epoch"], item["seq"]) for item in delivered}
        assert len(reported) == len(delivered)
        for sub in self.subs.values():
            sessions = {entry.event.session for entry in self.handed + unsent if entry.event is not None}
            for session in sessions | sub.requested.keys() | sub.told:
                position = reported.pop((sub.id, session), None)
                self._check_position(sub, session or "", position, unsent)
        assert not reported or not tells_all_by_filter(), "positions of which nothing was sent"

    def _check_position(self, sub: Sub, session: str, position: Position | None, unsent: list[Entry]) -> None:
        cursor = sub.behind.get(session)
        sent = [entry for entry in self.handed if sub in entry.subs and entry.is_of(session)]
        if cursor is not None:
            # What came live while the session was behind need not be told.
            sent = [entry for entry in sent if entry.is_replayed]
        positions = positions_of(sent)
        requested = [sub.requested[session]] if session in sub.requested else []
        # Subscriptions with the same filter share what holds a position down, so a lower one may be reported.
        bounds = [e for e in unsent if e.is_of(session) and any(same(sub, other) for other in e.subs)]
        own_bounds = [entry for entry in bounds if sub in entry.subs and not entry.droppable]
        if cursor is not None:
            unread = [Entry(b"", (sub,), item.event, item.key) for item in cursor.unread]
            bounds += unread
            own_bounds += unread
        if position is not None:
            for entry in own_bounds:
                assert not entry.holds_down(position), f"{position} passes over {entry.event}"
        known = positions or requested
        if not tells_all_by_filter():
            # Events are not told by filter: what is unsent for any subscription holds down every position.
            bounds += [entry for entry in unsent if entry.is_of(session)]
            fit = [p for p in known if not any(entry.holds_down(p) for entry in bounds)]
            # Below the lowest there is none to tell: what goes out there is the consumer's to know.
            assert position is not None or all(p == LOWEST for p in fit)
            return
        if not bounds and cursor is None and session not in sub.told:
            shared = [
                e for e in self.handed if e.is_of(session) and any(same(sub, other) for other in e.subs)
            ]
            highest = max(positions + requested, default=None)
            assert position == highest or (
                position in positions_of(shared) and (highest is None or position > highest)
            )
            return
        fit = [p for p in known if not any(entry.holds_down(p) for entry in bounds)]
        if max(known, default=None) not in fit:
            # It is looked for among what is held; of what is not, a lower one costs the consumer nothing.
            held = {item.key for item in self.store.held(session)}
            fit = [p for p in fit if p in held] or (fit and [min(fit)])
        assert not fit or position is not None
        if cursor is not None and cursor.overtaken:
            # It may have been set back to a backfill that is gone by now: resuming from there, that is said.
            return
        assert not fit or (position is not None and position >= max(fit))

    def _check_resumption(self, delivered: list[dict[str, Any]]) -> None:
        again = Consumer(self.relay, self.store, self.framing, None)
        for sub in self.subs.values():
            positions = [item for item in delivered if item["sub"] == sub.id]
            points = [ResumePoint(item["session"], (item["epoch"], item["seq"])) for item in positions]
            again.subscribe(sub.id, sub.filter, sub.ceiling, points, ends=False)
        while again.drain():
            pass
        told = {entry.data for entry in again.handed + self.handed}
        as_target = {e.event.key for e in self.handed if e.event is not None and not e.subs}
        for sub in self.subs.values():
            sent = {e.event.key for e in self.handed if e.event is not None and sub in e.subs}
            resumed = {
                e.event.key for e in again.handed if e.event is not None and again.subs[sub.id] in e.subs
            }
            for item in delivered:
                if item["sub"] == sub.id:
                    self._check_owed(sub, item["session"], sent | resumed | as_target, told)
        self.relay.detach(again.peer)

    def _check_owed(self, sub: Sub, session: str, got: set[tuple[str, str]], told: set[bytes]) -> None:
        held = {item.event for item in self.store.held(session)}
        for event, key in sub.owed.items():
            if event.session != session or event.key in got:
                continue
            if key is None and event.position is None:
                continue  # a redelivery of a rider: what it repeats stands somewhere in the history
            if key == BEFORE_ALL:
                continue  # before every position that a consumer can name
            assert event not in held, f"{event.id} is held and was lost"
            said = [
                data for data in told if b"replay-exhausted" in data and json.dumps(session).encode() in data
            ]
            assert said, f"{event.id} was lost and nothing said so"


def positions_of(entries: list[Entry]) -> list[Position]:
    return [e.event.position for e in entries if e.event is not None and e.event.position is not None]


def tells_all_by_filter() -> bool:
    """Say whether it is remembered of every Event here which of a connection's subscriptions it serves."""
    return cohort.MAX_SCOPES > 1


def same(one: Sub, other: Sub) -> bool:
    """Say whether two subscriptions share what is remembered of their deliveries."""
    return one.filter.key == other.filter.key and one.ceiling == other.ceiling
