"""What is owed to an upstream: nothing that is held is given up, whatever happens to lanes and buffers."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from aep_relay.hub.limits import Limits
from aep_relay.hub.store import Store
from aep_relay.protocol import filters
from aep_relay.upstream.kept import NOTICE
from aep_relay.upstream.lane import Lane
from aep_relay.upstream.ledger import Ledger
from tests.hub.build import command, event

if TYPE_CHECKING:
    from aep_relay.protocol.event import Event
    from aep_relay.protocol.filters import Filter

AMPLE = 64 * 1024 * 1024
LANES = 3


class Leaf:
    """A store, a ledger, and lanes whose far end keeps what is confirmed."""

    def __init__(self, buffer_bytes: int = AMPLE, filter_: Filter = filters.EMPTY, **limits: int) -> None:
        self.store = Store(dataclasses.replace(Limits(), **limits))
        self.fed: set[str] = set()
        self.ledger = Ledger(
            self.store, buffer_bytes, matches=filter_.matches, is_fed=lambda session: session in self.fed
        )
        self.woken: list[Lane] = []
        self.arrived: list[Event] = []
        self.sent: dict[str, Event] = {}
        """In the order in which each was sent first."""

    def lane(self, *, up: bool = True, claims: bool = False) -> Lane:
        lane = Lane(wake=lambda: self.woken.append(lane), claims=claims)
        if up:
            self.ledger.up(lane)
        return lane

    def take_in(self, lane: Lane, *events: Event) -> None:
        for item in events:
            self.store.admit(item)
            self.ledger.accept([item], lane)

    def send(self, lane: Lane, max_events: int = 10, max_bytes: int = AMPLE) -> list[str]:
        flight = self.ledger.take(lane, max_events, max_bytes)
        if flight is None:
            return []
        for item in flight.events:
            self.sent.setdefault(item.id, item)
        return [item.id for item in flight.events]

    def confirm(self, lane: Lane) -> None:
        for flight in lane.flying:
            self.arrived += flight.events
        self.ledger.confirm(lane, lane.serial)

    def drain(self, lane: Lane) -> list[str]:
        """Send and confirm all there is; return the ids in order."""
        ids: list[str] = []
        for _ in range(10_000):
            sent = self.send(lane)
            ids += sent
            self.confirm(lane)
            if not sent and lane.is_idle:
                return ids
        raise AssertionError("there is no end to it")


def events(*seqs: int, session: str = "s", **members: str) -> list[Event]:
    return [event(f"{session}{seq}", seq, session=session, **members) for seq in seqs]


def test_what_is_live_goes_up_once() -> None:
    leaf = Leaf()
    lane = leaf.lane()
    leaf.take_in(lane, *events(1, 2, 3))
    assert leaf.send(lane, max_events=2) == ["s1", "s2"]
    assert leaf.send(lane) == ["s3"]
    assert leaf.send(lane) == []
    assert lane.is_idle
    leaf.ledger.confirm(lane, 1)
    assert (leaf.ledger.confirmed_events, len(lane.flying)) == (2, 1)
    leaf.ledger.confirm(lane, 2)
    assert leaf.ledger.unconfirmed_bytes == 0
    assert lane.is_empty


def test_an_idle_lane_is_woken_once() -> None:
    leaf = Leaf()
    lane = leaf.lane()
    leaf.take_in(lane, *events(1))
    assert leaf.woken == []
    leaf.drain(lane)
    leaf.take_in(lane, *events(2, 3))
    assert leaf.woken == [lane]


def test_what_comes_together_keeps_to_the_bound_as_one_by_one() -> None:
    size_bytes = events(1)[0].held_bytes
    alone, together = Leaf(2 * 3 * size_bytes), Leaf(2 * 3 * size_bytes)
    for leaf in (alone, together):
        lane = leaf.lane()
        leaf.take_in(lane, *events(1))
        if leaf is alone:
            leaf.take_in(lane, *events(2, 3, 4, 5))
        else:
            burst = events(2, 3, 4, 5)
            assert leaf.store.admit_all(burst)
            leaf.ledger.accept(burst, lane)
        assert (leaf.ledger.live_bytes, list(leaf.ledger.behind)) == (3 * size_bytes, ["s"])
        assert leaf.drain(lane) == ["s1", "s2", "s3", "s4", "s5"]


def test_an_outage_keeps_nothing_that_the_buffers_hold() -> None:
    leaf = Leaf()
    lane = leaf.lane()
    leaf.take_in(lane, *events(1, 2))
    leaf.drain(lane)
    leaf.take_in(lane, *events(3, 4, 5))
    leaf.send(lane, max_events=2)
    leaf.ledger.down(lane)
    leaf.take_in(lane, *events(6, 7))
    assert leaf.ledger.unconfirmed_bytes == 0
    leaf.ledger.up(lane)
    assert leaf.drain(lane) == ["s3", "s4", "s5", "s6", "s7"]
    assert lane.is_empty
    leaf.take_in(lane, *events(8))
    assert len(lane.pending) == 1


def test_what_is_evicted_in_an_outage_is_kept_by_reference() -> None:
    leaf = Leaf(buffer_events=3)
    lane = leaf.lane(up=False)
    leaf.take_in(lane, *events(*range(10)))
    assert leaf.ledger.kept.size_bytes > 0
    leaf.ledger.up(lane)
    assert leaf.drain(lane) == [f"s{seq}" for seq in range(10)]
    assert leaf.ledger.dropped_events + leaf.ledger.lost_events == 0


def test_debug_and_info_are_given_up_first_and_counted() -> None:
    size = events(10)[0].held_bytes
    leaf = Leaf(buffer_bytes=2 * 6 * size, buffer_events=4)
    lane = leaf.lane(up=False)
    for seq in range(10, 30):
        leaf.take_in(lane, event(f"s{seq}", seq, severity="notice" if seq % 4 == 0 else "info"))
    leaf.ledger.up(lane)
    got = leaf.drain(lane)
    assert [id_ for id_ in got if int(id_[1:]) % 4 == 0] == ["s12", "s16", "s20", "s24", "s28"]
    assert got == sorted(got)
    assert leaf.ledger.lost_events == 0
    assert leaf.ledger.dropped_events == 20 - len(got) > 0


def test_notice_is_given_up_last_oldest_first_and_counted() -> None:
    size = events(10)[0].held_bytes
    leaf = Leaf(buffer_bytes=2 * 5 * size, buffer_events=2)
    lane = leaf.lane(up=False)
    leaf.take_in(lane, *events(*range(10, 20)))
    leaf.ledger.up(lane)
    assert leaf.drain(lane) == [f"s{seq}" for seq in range(13, 20)]
    assert (leaf.ledger.dropped_events, leaf.ledger.lost_events) == (0, 3)


def test_places_of_what_was_given_up_take_no_room() -> None:
    leaf = Leaf(buffer_bytes=32 * 1024, buffer_events=5)
    lane = leaf.lane(up=False)
    most = 0
    # The first one is never given up, and whatever is comes behind it.
    leaf.take_in(lane, *events(0, severity="critical"))
    for seq in range(1, 5000):
        leaf.take_in(lane, *events(seq, severity="debug"))
        leaf.take_in(lane, event(f"a{seq}", type="agent.status", session=None, seq=None, severity="debug"))
        most = max(most, len(leaf.ledger.behind["s"].refs) + len(lane.loose))
    assert most < 300
    assert leaf.ledger.given_up_events[0] > 9800
    leaf.ledger.up(lane)
    assert "s0" in leaf.drain(lane)


def test_a_tighter_bound_holds_at_once() -> None:
    leaf = Leaf(buffer_bytes=64 * 1024, buffer_events=5)
    lane = leaf.lane(up=False)
    leaf.take_in(lane, *events(*range(50)))
    assert leaf.ledger.kept.size_bytes > 8 * 1024
    leaf.ledger.change(16 * 1024, filters.EMPTY.matches)
    assert leaf.ledger.kept.size_bytes <= 8 * 1024
    assert leaf.ledger.lost_events > 0
    for seq in range(50, 100):
        leaf.take_in(lane, *events(seq))
        assert leaf.ledger.kept.size_bytes <= 8 * 1024


def test_what_was_sent_and_not_confirmed_is_counted() -> None:
    leaf = Leaf()
    lane = leaf.lane()
    leaf.take_in(lane, *events(1, 2, 3))
    assert leaf.send(lane, max_events=2) == ["s1", "s2"]
    leaf.ledger.down(lane)
    assert leaf.ledger.resent_events == 2
    leaf.ledger.up(lane)
    assert leaf.drain(lane) == ["s1", "s2", "s3"]
    assert leaf.ledger.resent_events == 2


def test_a_session_that_is_gone_whole() -> None:
    leaf = Leaf(max_sessions=2)
    lane = leaf.lane(up=False)
    for session in "abcdefgh":
        leaf.take_in(lane, *events(1, 2, session=session))
    leaf.ledger.up(lane)
    assert sorted(leaf.drain(lane)) == [f"{session}{seq}" for session in "abcdefgh" for seq in (1, 2)]
    assert leaf.ledger.behind == {}


def test_too_much_unconfirmed_is_left_to_the_buffers() -> None:
    size = events(1)[0].held_bytes
    leaf = Leaf(buffer_bytes=2 * 3 * size)
    lane = leaf.lane()
    leaf.take_in(lane, *events(*range(1, 9)))
    assert len(lane.pending) == 3
    assert leaf.ledger.unconfirmed_bytes == 3 * size
    assert leaf.drain(lane) == [f"s{seq}" for seq in range(1, 9)]


def test_backfill_redelivery_and_riders_go_up_in_an_outage() -> None:
    leaf = Leaf()
    lane = leaf.lane()
    leaf.take_in(lane, *events(1, 5))
    leaf.drain(lane)
    leaf.ledger.down(lane)
    leaf.take_in(lane, *events(7), event("r"), *events(3), *events(5))
    leaf.store.admit(command("c"))
    leaf.take_in(lane, *events(8))
    leaf.ledger.up(lane)
    got = leaf.drain(lane)
    assert set(got) == {"s3", "s5", "s7", "s8", "r"}
    assert [id_ for id_ in got if id_ in ("s7", "r", "s8")] == ["s7", "r", "s8"]


def test_events_of_no_session_are_kept() -> None:
    leaf = Leaf()
    lane = leaf.lane()
    status = [event(f"a{n}", None, session=None, type="agent.status") for n in range(3)]
    leaf.take_in(lane, status[0])
    leaf.send(lane)
    leaf.ledger.down(lane)
    leaf.take_in(lane, *status[1:])
    leaf.ledger.up(lane)
    assert leaf.drain(lane) == ["a0", "a1", "a2"]


def test_the_filter_holds_for_what_is_read_back() -> None:
    leaf = Leaf(filter_=filters.parse({"severity": {"gte": "notice"}}))
    lane = leaf.lane(up=False)
    for seq in range(1000):
        item = event(f"s{seq}", seq, severity="info" if seq % 100 else "error")
        leaf.store.admit(item)
        if item.severity >= NOTICE:
            leaf.ledger.accept([item], lane)
    leaf.ledger.up(lane)
    assert leaf.drain(lane) == [f"s{seq}" for seq in range(0, 1000, 100)]


def test_a_session_that_comes_down_is_not_read_from_its_buffer() -> None:
    leaf = Leaf()
    leaf.fed.add("s")
    lane = leaf.lane(up=False)
    leaf.store.admit(event("theirs", 1))
    leaf.take_in(lane, event("mine", 2))
    leaf.store.admit(event("theirs-too", 3))
    leaf.ledger.up(lane)
    assert leaf.drain(lane) == ["mine"]


def test_a_session_waits_for_what_is_in_flight_on_another_lane() -> None:
    leaf = Leaf()
    first, second = leaf.lane(claims=True), leaf.lane(claims=True)
    leaf.take_in(first, *events(1, 2))
    leaf.send(first, max_events=1)
    leaf.send(second)
    leaf.take_in(second, *events(3))
    assert leaf.send(second) == []
    assert second.is_idle
    leaf.ledger.confirm(first, 1)
    assert leaf.woken[-1] is second
    assert leaf.drain(second) == ["s2", "s3"]


def test_who_waits_for_a_busy_lane_is_noted_once_and_no_longer_than_it_waits() -> None:
    leaf = Leaf()
    posts, busy = leaf.lane(), events(*range(100), session="b")
    for number in range(20):
        mirror = leaf.lane(claims=True)
        # The lane has something in flight at any time.
        leaf.take_in(posts, *events(2 * number), busy.pop())
        assert leaf.send(posts)
        leaf.take_in(mirror, *events(2 * number + 1))
        assert leaf.send(mirror) == []
        assert len(posts.waiters) == 1
        leaf.take_in(posts, busy.pop())
        assert leaf.send(posts)
        leaf.ledger.confirm(posts, posts.serial - 1)
        assert posts.flying
        assert posts.waiters == {}
        leaf.drain(mirror)


def test_who_takes_over_from_one_that_waited_is_woken_as_it_would_have_been() -> None:
    leaf = Leaf()
    posts, first, second = leaf.lane(), leaf.lane(claims=True), leaf.lane(claims=True)
    leaf.take_in(posts, *events(1))
    assert leaf.send(posts) == ["s1"]
    leaf.take_in(first, *events(2))
    leaf.take_in(second, *events(3))
    assert leaf.send(first) == leaf.send(second) == []
    leaf.woken.clear()
    leaf.confirm(posts)
    assert second in leaf.woken
    assert leaf.drain(second) == ["s2", "s3"]


def test_an_heir_goes_on_where_a_lane_ended() -> None:
    leaf = Leaf()
    mirror, posts = leaf.lane(claims=True), leaf.lane()
    leaf.drain(posts)
    leaf.take_in(mirror, *events(1, 2), event("a", None, session=None, type="agent.status"))
    leaf.send(mirror, max_events=1)
    leaf.ledger.retire(mirror, posts)
    assert leaf.woken == [posts]
    assert leaf.drain(posts) == ["a", "s1", "s2"]


def test_a_posted_event_does_not_take_a_session_from_its_emitter() -> None:
    leaf = Leaf()
    mirror, posts = leaf.lane(claims=True), leaf.lane()
    leaf.ledger.down(posts)
    leaf.ledger.down(mirror)
    leaf.ledger.up(mirror)
    leaf.take_in(posts, *events(1))
    leaf.take_in(mirror, *events(2))
    leaf.ledger.up(posts)
    assert leaf.ledger.behind["s"].lane is mirror
    leaf.take_in(posts, *events(3))
    assert leaf.drain(mirror) == ["s1", "s2", "s3"]


def test_part_of_a_flight_can_be_over() -> None:
    leaf = Leaf()
    lane = leaf.lane()
    leaf.take_in(lane, *events(1, 2, 3))
    leaf.send(lane)
    leaf.ledger.confirm_first(lane, 1)
    leaf.ledger.confirm_first(lane, 1, arrived=False)
    leaf.ledger.down(lane)
    leaf.ledger.up(lane)
    assert leaf.drain(lane) == ["s3"]
    assert leaf.ledger.confirmed_events == 2


def test_what_was_held_before_the_start_goes_up() -> None:
    leaf = Leaf()
    for item in (*events(1, 2), *events(1, session="t")):
        leaf.store.admit(item)
    lane = leaf.lane(up=False)
    leaf.ledger.restore(lambda session: lane)
    leaf.ledger.up(lane)
    assert sorted(leaf.drain(lane)) == ["s1", "s2", "t1"]


class LedgerMachine(RuleBasedStateMachine):
    """Events of a few sessions, lanes that fail and are replaced, small buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.leaf = Leaf(buffer_bytes=8 * 1024, buffer_events=6, max_sessions=2)
        self.posts = self.leaf.lane()
        self.lanes = [self.leaf.lane(claims=True) for _ in range(LANES)]
        self.seq = dict.fromkeys("stu", 0)
        self.accepted: dict[str, Event] = {}

    @property
    def ledger(self) -> Ledger:
        return self.leaf.ledger

    def _lane(self, number: int) -> Lane:
        return self.posts if number == LANES else self.lanes[number]

    lanes_ = st.integers(0, LANES)

    @rule(number=lanes_, session=st.sampled_from("stu"), severity=st.sampled_from(["debug", "notice"]))
    def take_in(self, number: int, session: str, severity: str) -> None:
        self.seq[session] += 2
        item = event(f"{session}{self.seq[session]}", self.seq[session], session=session, severity=severity)
        self.accepted[item.id] = item
        self.leaf.take_in(self._lane(number), item)

    @rule(number=lanes_, session=st.sampled_from("stu"))
    def backfill(self, number: int, session: str) -> None:
        seq = max(1, self.seq[session] - 3)
        item = event(f"{session}b{seq}", seq, session=session)
        if item.id not in self.accepted:
            self.accepted[item.id] = item
            self.leaf.take_in(self._lane(number), item)

    @rule(number=lanes_, session=st.sampled_from(["s", "t", None]))
    def beside(self, number: int, session: str | None) -> None:
        type_ = "agent.status" if session is None else "attention.routed"
        item = event(f"x{len(self.accepted)}", None, session=session, type=type_)
        self.accepted[item.id] = item
        self.leaf.take_in(self._lane(number), item)

    @rule(number=lanes_, max_events=st.integers(1, 4))
    def send(self, number: int, max_events: int) -> None:
        lane = self._lane(number)
        if lane.is_up:
            self.leaf.send(lane, max_events, 4000)

    @rule(number=lanes_, count=st.integers(1, 2))
    def confirm(self, number: int, count: int) -> None:
        lane = self._lane(number)
        over = list(lane.flying)[:count]
        for flight in over:
            self.leaf.arrived += flight.events
        if over:
            self.ledger.confirm(lane, over[-1].serial)

    @rule(number=lanes_)
    def fail(self, number: int) -> None:
        self.ledger.down(self._lane(number))

    @rule(number=lanes_)
    def mend(self, number: int) -> None:
        self.ledger.up(self._lane(number))

    @rule(number=st.integers(0, LANES - 1))
    def replace(self, number: int) -> None:
        self.ledger.retire(self.lanes[number], self.posts)
        self.lanes[number] = self.leaf.lane(claims=True)

    @precondition(lambda self: self.accepted)
    @rule()
    def drain(self) -> None:
        lanes = [*self.lanes, self.posts]
        for lane in lanes:
            self.ledger.up(lane)
        for _ in range(3):
            for lane in lanes:
                self.leaf.drain(lane)
        assert all(lane.is_empty for lane in lanes)
        assert self.ledger.behind == {}
        assert self.ledger.unconfirmed_bytes == 0
        arrived = {item.id for item in self.leaf.arrived}
        missing = [item for id_, item in self.accepted.items() if id_ not in arrived]
        essential = [item for item in missing if item.severity >= NOTICE]
        assert len(essential) <= self.ledger.lost_events
        assert len(missing) - len(essential) <= self.ledger.dropped_events

    @invariant()
    def sessions_go_up_in_order(self) -> None:
        for session in "stu":
            seqs = [
                item.seq
                for item in self.leaf.sent.values()
                if item.session == session and item.seq is not None and item.seq % 2 == 0
            ]
            assert seqs == sorted(seqs)

    @invariant()
    def memory_is_bounded(self) -> None:
        assert self.ledger.kept.size_bytes <= 4 * 1024
        live = [
            item
            for lane in (*self.lanes, self.posts)
            for item in [*lane.pending, *(item for flight in lane.flying for item in flight.events)]
            if item is not None
        ]
        assert self.ledger.live_bytes == sum(event.held_bytes for event in live)

    def teardown(self) -> None:
        if self.accepted:
            self.drain()


TestLedger = LedgerMachine.TestCase
TestLedger.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
