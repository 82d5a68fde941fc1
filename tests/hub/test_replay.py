"""Replay: pulled as the socket drains, in order, with no gap at the turn to live, honest about what is gone."""

from __future__ import annotations

import json
from typing import Any

import pytest

from aep_relay.hub import catchup
from aep_relay.hub.buffer import SessionBuffer
from aep_relay.hub.limits import Limits
from aep_relay.hub.policy import Grants, Patterns
from aep_relay.hub.relay import Relay
from aep_relay.protocol import filters
from aep_relay.protocol.framing import Framing
from aep_relay.protocol.position import ResumePoint
from aep_relay.protocol.registry import CAPTURE_RANK
from tests.fakes.sink import MemorySink, frames_of, ids, received
from tests.hub.build import consumer, drain, event, ingest, relay, sink


def after(seq: int, session: str = "s", epoch: int = 0) -> list[ResumePoint]:
    return [ResumePoint(session, (epoch, seq))]


def emit(hub: Relay, *seqs: int, session: str = "s") -> None:
    ingest(hub, *(event(f"{session}{seq}", seq, session=session) for seq in seqs))


@pytest.fixture
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catchup, "SLICE_EVENTS", 2)


def test_a_resumed_session_is_replayed_strictly_after_the_position() -> None:
    hub = relay()
    emit(hub, 1, 2, 3, 5)
    peer = consumer(hub, from_=after(2))
    drain(hub, peer)
    assert ids(peer) == ["s3", "s5"]


def test_nothing_is_replayed_without_from() -> None:
    hub = relay()
    emit(hub, 1, 2)
    peer = consumer(hub)
    assert not hub.drain_peer(peer)
    emit(hub, 3)
    assert ids(peer) == ["s3"]


def test_sessions_that_from_does_not_name_are_live_at_once() -> None:
    hub = relay()
    emit(hub, 1, 2)
    emit(hub, 1, session="t")
    peer = consumer(hub, from_=after(1))
    emit(hub, 2, session="t")
    drain(hub, peer)
    assert ids(peer) == ["t2", "s2"]


def test_an_empty_array_replays_nothing_and_is_live() -> None:
    hub = relay()
    emit(hub, 1)
    peer = consumer(hub, from_=[])
    drain(hub, peer)
    emit(hub, 2)
    assert ids(peer) == ["s2"]


def test_all_replays_every_session_from_its_earliest_and_never_claims_exhaustion() -> None:
    hub = relay(buffer_events=2)
    emit(hub, 1, 2, 3)
    emit(hub, 1, session="t")
    peer = consumer(hub, from_="all")
    drain(hub, peer)
    assert ids(peer) == ["s2", "s3", "t1"]
    assert not frames_of(peer, "replay-exhausted")


def test_all_keeps_to_the_filter_and_the_ceiling() -> None:
    hub = relay()
    loud = event("a", 1, capture="full", data={"args": {"command": "secret"}, "tool": {"name": "Bash"}})
    ingest(hub, loud, event("b", 2, severity="info"))
    emit(hub, 1, session="t")
    peer = consumer(
        hub, filters.parse({"session": ["s", "gone"], "severity": {"gte": "notice"}}), "all", ceiling=0
    )
    drain(hub, peer)
    assert ids(peer) == ["a"]
    assert b"secret" not in received(peer)[0]


def test_the_lower_of_two_positions_for_one_session_counts() -> None:
    hub = relay()
    emit(hub, 1, 2, 3)
    peer = consumer(hub, from_=after(2) + after(1))
    drain(hub, peer)
    assert ids(peer) == ["s2", "s3"]


def test_riders_of_the_requested_position_are_replayed() -> None:
    hub = relay()
    emit(hub, 1)
    ingest(hub, event("rider"))
    emit(hub, 2)
    peer = consumer(hub, from_=after(1))
    drain(hub, peer)
    assert ids(peer) == ["rider", "s2"]


def test_a_gap_is_not_exhaustion() -> None:
    hub = relay(buffer_events=2)
    emit(hub, 1, 50, 60)
    peer = consumer(hub, from_=after(7))
    drain(hub, peer)
    assert not frames_of(peer, "replay-exhausted")
    assert ids(peer) == ["s50", "s60"]


def test_exhaustion_comes_first_and_says_what_is_held() -> None:
    hub = relay(buffer_events=2)
    emit(hub, 1, 2, 3, 4)
    peer = consumer(hub, from_=after(1))
    drain(hub, peer)
    assert received(peer)[0] == (
        b'{"type":"replay-exhausted","sub":"sub","session":"s","earliest":{"epoch":0,"seq":3}}'
    )
    assert ids(peer) == ["s3", "s4"]


def test_exhaustion_of_a_session_that_is_wholly_gone() -> None:
    hub = relay(max_sessions=1)
    emit(hub, 1, 2)
    emit(hub, 1, session="t")
    peer = consumer(hub, from_=after(1))
    drain(hub, peer)
    (frame,) = frames_of(peer, "replay-exhausted")
    assert frame["earliest"] == {"epoch": 0, "seq": 3}
    other = consumer(hub, from_=after(2))
    drain(hub, other)
    assert received(other) == []


def test_exhaustion_over_sse_is_a_comment_that_cannot_break_the_framing() -> None:
    hub = relay(buffer_events=1)
    emit(hub, 1, 2, session="a\nb")
    for framing in (Framing.SSE, Framing.SSE_UNCHUNKED):
        peer = consumer(hub, from_=after(0, "a\nb"), framing=framing)
        drain(hub, peer)
        assert received(peer)[0] == b": replay-exhausted a%0Ab 0:2"
        assert b"id:" not in sink(peer).taken


def test_what_comes_while_a_session_is_behind_is_left_to_its_cursor(small_slices: None) -> None:
    hub = relay()
    emit(hub, 1, 2, 3)
    peer = consumer(hub, from_="all")
    assert hub.drain_peer(peer)
    emit(hub, 4)
    ingest(hub, event("rider"))
    assert ids(peer) == ["s1", "s2"]
    drain(hub, peer)
    emit(hub, 5)
    assert ids(peer) == ["s1", "s2", "s3", "s4", "rider", "s5"]


def test_a_backfill_behind_the_cursor_comes_live(small_slices: None) -> None:
    hub = relay()
    emit(hub, 10, 20, 30)
    peer = consumer(hub, from_="all")
    assert hub.drain_peer(peer)
    emit(hub, 5, 25)
    drain(hub, peer)
    assert ids(peer) == ["s10", "s20", "s5", "s25", "s30"]


def test_a_redelivery_of_what_is_unread_does_not_overtake_what_comes_before_it(small_slices: None) -> None:
    # Who resumes after the highest position it saw would lose what was overtaken.
    hub = relay()
    emit(hub, 1, 2, 3, 4)
    peer = consumer(hub, from_="all")
    assert hub.drain_peer(peer)
    emit(hub, 4)
    assert ids(peer) == ["s1", "s2"]
    drain(hub, peer)
    assert ids(peer) == ["s1", "s2", "s3", "s4"]


def test_a_redelivery_of_what_was_read_passes(small_slices: None) -> None:
    hub = relay()
    emit(hub, 1, 2, 3, 4)
    peer = consumer(hub, from_="all")
    assert hub.drain_peer(peer)
    emit(hub, 2)
    assert ids(peer) == ["s1", "s2", "s2"]


def test_a_redelivery_with_other_bytes_does_not_overtake_either(small_slices: None) -> None:
    # Two links with different ceilings bring the same Event.
    hub = relay()
    emit(hub, 1, 2, 3, 4)
    peer = consumer(hub, from_="all")
    assert hub.drain_peer(peer)
    ingest(hub, event("s4", 4, capture="none"))
    assert ids(peer) == ["s1", "s2"]
    drain(hub, peer)
    assert ids(peer) == ["s1", "s2", "s3", "s4"]
    ingest(hub, event("s4", 4, capture="none"))
    assert ids(peer)[4:] == ["s4"]


def test_eviction_that_overtakes_a_replay_is_told_and_the_replay_goes_on(small_slices: None) -> None:
    hub = relay(buffer_events=3)
    emit(hub, 1, 2, 3)
    peer = consumer(hub, from_="all")
    assert hub.drain_peer(peer)
    emit(hub, 4, 5, 6)
    drain(hub, peer)
    assert ids(peer) == ["s1", "s2", "s4", "s5", "s6"]
    (frame,) = frames_of(peer, "replay-exhausted")
    assert frame["earliest"] == {"epoch": 0, "seq": 4}


def test_what_is_sent_again_hides_no_loss() -> None:
    hub = relay(buffer_events=3)
    emit(hub, 1, 2, 3, 4, 5)
    peer = consumer(hub, from_=after(2))
    emit(hub, 6, 7)
    # Who leaves now and resumes after s4 is told nothing then: nothing after s4 is gone, while s3 is.
    emit(hub, 4)
    assert [json.loads(text)["type"] for text in received(peer)] == ["replay-exhausted", "tool.completed"]
    (frame,) = frames_of(peer, "replay-exhausted")
    assert frame["earliest"] == {"epoch": 0, "seq": 5}
    drain(hub, peer)
    assert ids(peer) == ["s4", "s5", "s6", "s7"]
    assert len(frames_of(peer, "replay-exhausted")) == 1


def test_what_is_sent_again_of_a_session_that_is_gone_hides_no_loss() -> None:
    hub = relay(max_sessions=1)
    emit(hub, 1, 2, 3)
    peer = consumer(hub, from_=after(1))
    emit(hub, 1, session="t")
    ingest(hub, event("s3", 3))
    assert ids(peer) == ["t1", "s3"]
    drain(hub, peer)
    assert ids(peer) == ["t1", "s3"]
    assert [frame["session"] for frame in frames_of(peer, "replay-exhausted")] == ["s"]


def test_a_session_that_never_ends_holds_up_no_other(small_slices: None) -> None:
    hub = relay()
    emit(hub, 1, 2, 3)
    emit(hub, 1, session="t")
    peer = consumer(hub, from_="all")
    for seq in range(4, 24, 2):
        assert hub.drain_peer(peer)
        emit(hub, seq, seq + 1)
    assert "t1" in ids(peer)
    drain(hub, peer)
    assert [each for each in ids(peer) if each != "t1"] == [f"s{seq}" for seq in range(1, 24)]


def test_a_replay_that_never_ends_holds_up_no_other(small_slices: None) -> None:
    hub = relay()
    emit(hub, 1, 2, 3)
    emit(hub, 1, session="t")
    peer = consumer(hub, filters.parse({"session": "s"}), from_="all")
    hub.subscribe(peer, "other", filters.parse({"session": "t"}), None, "all")
    for seq in range(4, 24, 2):
        assert hub.drain_peer(peer)
        emit(hub, seq, seq + 1)
    assert "t1" in ids(peer)


def test_live_events_left_to_a_cursor_that_is_never_reached_are_not_lost_silently() -> None:
    hub = relay(buffer_events=3, max_sessions=2)
    emit(hub, 1, session="a")
    emit(hub, 1, session="b")
    peer = consumer(hub, from_="all", capacity_bytes=0)
    assert hub.drain_peer(peer)
    # Both sessions are behind. What comes for them now is left to cursors, and goes before those get to it.
    emit(hub, 2, session="b")
    emit(hub, 1, session="c")
    emit(hub, 1, session="d")
    sink(peer).capacity_bytes = None
    drain(hub, peer)
    told = [frame["session"] for frame in frames_of(peer, "replay-exhausted")]
    assert "b2" in ids(peer) or "b" in told


def test_an_event_that_is_too_large_to_hold_reaches_a_replaying_consumer_all_the_same() -> None:
    hub = relay(max_session_bytes=2_000)
    emit(hub, 1)
    peer = consumer(hub, from_="all")
    ingest(hub, event("big", 2, data={"text": "x" * 3_000}))
    drain(hub, peer)
    assert "big" in ids(peer)
    assert frames_of(peer, "replay-exhausted"), "s1 went with it"


def test_replay_and_end() -> None:
    hub = relay()
    emit(hub, 1, 2)
    peer = hub.attach("test", Framing.SSE, MemorySink())
    assert hub.subscribe(peer, "stream", filters.EMPTY, None, "all", ends=True) is None
    drain(hub, peer)
    emit(hub, 3)
    assert ids(peer) == ["s1", "s2"]
    assert received(peer)[-1] == b": replay-complete"
    assert sink(peer).closed == ("replay-complete", 1000)


@pytest.mark.parametrize("from_", [None, []])
def test_a_replay_of_nothing_ends_at_once(from_: list[ResumePoint] | None) -> None:
    hub = relay()
    emit(hub, 1)
    peer = hub.attach("test", Framing.SSE, MemorySink())
    hub.subscribe(peer, "stream", filters.EMPTY, None, from_, ends=True)
    drain(hub, peer)
    assert received(peer) == [b": replay-complete"]


def test_a_replay_that_ends_does_not_chase_what_still_comes(small_slices: None) -> None:
    hub = relay()
    emit(hub, 1, 2, 3)
    stream = hub.attach("test", Framing.SSE, MemorySink())
    hub.subscribe(stream, "stream", filters.EMPTY, None, "all", ends=True)
    assert hub.drain_peer(stream)
    hub.ingest(event("s4", 4))
    drain(hub, stream)
    assert ids(stream) == ["s1", "s2", "s3"]


def test_a_replay_is_pulled_as_the_socket_drains_and_takes_no_more_memory_when_it_is_long() -> None:
    hub = relay()
    for seq in range(2_000):
        hub.ingest(event(f"e{seq}", seq))
    peer = consumer(hub, from_="all", capacity_bytes=1_000)
    most = 0
    while hub.drain_peer(peer):
        most = max(most, peer.outbox.queued_bytes)
        sink(peer).capacity_bytes = 50_000
    assert len(ids(peer)) == 2_000
    assert 0 < most <= catchup.SLICE_BYTES + 1_000


def test_a_slice_stays_small_where_every_session_is_exhausted() -> None:
    # Each exhausted session begins a batch of its own; their sum is bounded, too.
    hub = relay(buffer_events=2)
    text = "x" * 60_000
    points = []
    for number in range(20):
        session = f"s{number}"
        ingest(hub, *(event(f"{session}:{seq}", seq, session=session, data={"t": text}) for seq in range(3)))
        points += after(0, session)
    peer = consumer(hub, from_=points, capacity_bytes=0)
    hub.drain_peer(peer)
    assert peer.outbox.queued_bytes < catchup.SLICE_BYTES + 70_000


def test_a_slice_stays_within_the_soft_limit() -> None:
    hub = relay(soft_limit_bytes=1_000, hard_limit_bytes=4_000)
    emit(hub, *range(50))
    peer = consumer(hub, from_="all", capacity_bytes=0)
    hub.drain_peer(peer)
    assert peer.outbox.queued_bytes <= 1_000 + len(event("s00", 50).raw) + 4
    assert peer.push(b"ping"), "a heartbeat must not end it"


@pytest.mark.parametrize(("ceiling", "steps"), [(None, 4), ("full", 4), ("metadata", 4), ("redacted", 16)])
def test_a_slice_is_as_long_as_what_was_read_for_it(
    ceiling: str | None, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However little is left when it has been down-leveled."""
    monkeypatch.setattr(catchup, "SLICE_BYTES", 16 * 1024)
    monkeypatch.setattr(catchup, "REDACTION_FACTOR", 4)
    hub = Relay(Limits(), redact=str.upper)
    for seq in range(16):
        ingest(hub, event(f"e{seq}", seq, type="run.started", capture="full", data={"prompt": "x" * 4000}))
    peer = consumer(hub, from_="all", ceiling=None if ceiling is None else CAPTURE_RANK[ceiling])
    counts, before = [], 0
    while peer.replaying:
        hub.drain_peer(peer)
        counts.append(hub.stats.replayed_events - before)
        before = hub.stats.replayed_events
    assert counts == [16 // steps] * steps
    assert (b"X" * 4000 in sink(peer).taken) == (ceiling == "redacted")


def test_a_slice_is_as_short_as_its_filter_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catchup, "SLICE_EVENTS", 16)
    hub = relay()
    emit(hub, *range(32))
    counts = []
    for predicates in (0, 3, 4, 60):
        chosen = filters.parse({"session": "s"} | {f"region{number}": 0 for number in range(predicates - 1)})
        peer = consumer(hub, chosen, "all")
        steps = 0
        while peer.replaying:
            hub.drain_peer(peer)
            steps += 1
        counts.append(steps)
    assert counts == [2, 2, 4, 32]


def test_a_slice_is_as_short_as_what_it_tells_of_losses_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catchup, "SLICE_BYTES", 8 * 1024)
    hub = relay(max_sessions=10)
    peer = consumer(hub)
    names = [f"{number}" + "x" * 1000 for number in range(10)]
    for name in names:
        emit(hub, 1, 2, session=name)
    assert hub.subscribe(peer, "all", filters.EMPTY, None, "all") is None
    for number in range(10):
        emit(hub, 1, session=f"other-{number}")
    told = []
    while peer.replaying:
        before = sink(peer).taken.count(b"replay-exhausted")
        hub.drain_peer(peer)
        told.append(sink(peer).taken.count(b"replay-exhausted") - before)
    assert sum(told) == len(names)
    assert max(told) <= 4, "name and frame, 2 KiB for each"


def test_an_event_is_looked_up_once_for_all_that_replay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hub = relay(soft_limit_bytes=1)
    emit(hub, *range(100))
    peers = [consumer(hub, from_="all", capacity_bytes=0) for _ in range(2)]
    for peer in peers:
        for number in range(20):
            chosen = filters.parse({"session": ["s", f"x{number}"]})
            assert hub.subscribe(peer, f"{number}", chosen, None, "all") is None
        hub.drain_peer(peer)
    looked_for: list[object] = []
    held_at = SessionBuffer._held_at

    def noted(buffer: SessionBuffer, *rest: Any) -> int:
        looked_for.append(rest)
        return held_at(buffer, *rest)

    monkeypatch.setattr(SessionBuffer, "_held_at", noted)
    assert hub.ingest(event("new", 200)) is None
    assert hub.ingest(event("other", 1, session="t")) is None
    assert len(looked_for) == 2


def test_replacing_a_subscription_in_mid_replay_leaves_nothing_of_it(small_slices: None) -> None:
    hub = relay()
    emit(hub, 1, 2, 3, 4)
    peer = consumer(hub, from_="all")
    assert hub.drain_peer(peer)
    assert hub.subscribe(peer, "sub", filters.parse({"session": "t"}), None) is None
    assert not hub.drain_peer(peer)
    emit(hub, 5)
    emit(hub, 1, session="t")
    assert ids(peer) == ["s1", "s2", "t1"]


def test_unsubscribing_in_mid_replay_ends_it(small_slices: None) -> None:
    hub = relay()
    emit(hub, 1, 2, 3, 4)
    peer = consumer(hub, from_="all")
    assert hub.drain_peer(peer)
    assert hub.unsubscribe(peer, "sub")
    assert not hub.unsubscribe(peer, "sub")
    assert not hub.drain_peer(peer)
    emit(hub, 5)
    assert ids(peer) == ["s1", "s2"]


def test_each_subscription_of_a_connection_has_its_own_replay_and_ceiling() -> None:
    hub = relay()
    ingest(hub, event("a", 1, capture="full", data={"args": {"command": "secret"}, "tool": {"name": "Bash"}}))
    peer = consumer(hub, from_="all", ceiling=0)
    assert hub.subscribe(peer, "other", filters.EMPTY, None, "all") is None
    drain(hub, peer)
    first, second = received(peer)
    assert b"data" not in first
    assert b"secret" in second


def test_one_subscription_replays_while_another_of_the_connection_is_live(small_slices: None) -> None:
    hub = relay()
    emit(hub, 1, 2, 3)
    peer = consumer(hub)
    assert hub.subscribe(peer, "other", filters.EMPTY, None, "all") is None
    assert hub.drain_peer(peer)
    emit(hub, 4)  # live for the first, left to its cursor for the other
    drain(hub, peer)
    assert ids(peer) == ["s1", "s2", "s4", "s3", "s4"]
    emit(hub, 5)
    assert ids(peer)[5:] == ["s5"], "one delivery for a connection and a live Event"


def test_a_consumer_whose_token_narrows_it_is_not_told_of_other_sessions() -> None:
    hub = relay(max_sessions=2)
    emit(hub, 1, session="mine")
    emit(hub, 1, session="theirs")
    peer = hub.attach("test", Framing.WEBSOCKET, MemorySink())
    peer.grants = Grants(authenticated=True, sessions=Patterns(("mine*",)))
    assert hub.subscribe(peer, "sub", filters.EMPTY, None, "all") is None
    emit(hub, 2, session="mine")
    emit(hub, 1, session="mine2")  # evicts theirs
    drain(hub, peer)
    assert not any(b"theirs" in line for line in received(peer) if b"replay-exhausted" in line)


def test_the_more_replay_at_a_time_the_less_each_is_handed_in_one_go() -> None:
    hub = relay()
    emit(hub, *range(600))
    handed = []
    for among in (1, 64, 1_000_000):
        peer = consumer(hub, from_="all", framing=Framing.JSONL)
        assert hub.drain_peer(peer, among)
        handed.append(len(ids(peer)))
        while hub.drain_peer(peer, among):
            pass
        assert ids(peer) == [f"s{seq}" for seq in range(600)]
    assert handed == [catchup.SLICE_EVENTS, catchup.ROUND_EVENTS // 64, catchup.LEAST_EVENTS]
