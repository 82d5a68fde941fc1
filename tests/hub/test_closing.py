"""How connections end: positions that a consumer can resume by, whole frames, and nothing left behind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aep_relay.hub import catchup, cohort, delivered, fanout
from aep_relay.protocol import filters
from aep_relay.protocol.framing import Framing
from aep_relay.protocol.position import ResumePoint
from tests.fakes.sink import MemorySink, frames_of, ids, received
from tests.hub.build import assert_empty, consumer, drain, event, flush, ingest, relay, sink

if TYPE_CHECKING:
    from aep_relay.hub.peer import Peer
    from aep_relay.hub.relay import Relay

Reported = dict[tuple[str, str], tuple[int, int]]


def emit(hub: Relay, *seqs: int, session: str = "s", severity: str = "notice") -> None:
    for seq in seqs:
        ingest(hub, event(f"{session}{seq}", seq, session=session, severity=severity))


def end(hub: Relay, peer: Peer) -> Reported:
    """Close ``peer``, let its sink take everything, and return the positions it was told."""
    hub.close(peer, "shutdown", 1001)
    sink(peer).capacity_bytes = None
    drain(hub, peer)
    assert b'"closing"' in received(peer)[-1]
    (closing,) = frames_of(peer, "closing")
    return {(item["sub"], item["session"]): (item["epoch"], item["seq"]) for item in closing["delivered"]}


def room_for(peer: Peer, *ids_: str) -> None:
    """Let the sink take the next frames up to the first byte of the last of ``ids_``."""
    queued = [frame for batch, _ in peer.outbox.unsent() for frame in batch.frames]
    position = next(n for n, frame in enumerate(queued) if f'"{ids_[-1]}"'.encode() in frame)
    sink(peer).capacity_bytes = sum(map(len, queued[:position])) + 1


def test_a_consumer_that_kept_up_is_told_the_last_position_of_each_session() -> None:
    hub = relay()
    peer = consumer(hub)
    emit(hub, 1, 2)
    emit(hub, 5, session="t")
    assert end(hub, peer) == {("sub", "s"): (0, 2), ("sub", "t"): (0, 5)}
    assert sink(peer).closed == ("shutdown", 1001)


def test_what_did_not_go_out_is_not_told() -> None:
    hub = relay()
    peer = consumer(hub, capacity_bytes=0)
    emit(hub, 1, 2, 3)
    room_for(peer, "s2")
    hub.drain_peer(peer)
    assert end(hub, peer) == {("sub", "s"): (0, 2)}
    assert ids(peer) == ["s1", "s2"], "the frame that was begun is finished"


@pytest.mark.parametrize("framing", [Framing.WEBSOCKET, Framing.SSE])
def test_what_was_not_flushed_yet_is_handed_over_first(framing: Framing) -> None:
    # Its emitter was told that it is accepted; after a shutdown nobody could replay it.
    hub = relay()
    peer = consumer(hub, framing=framing)
    emit(hub, 1)
    hub.ingest(event("s2", 2))
    hub.close(peer, "shutdown", 1001)
    drain(hub, peer)
    assert ids(peer) == ["s1", "s2"]
    if framing is Framing.WEBSOCKET:
        assert frames_of(peer, "closing")[0]["delivered"] == [
            {"sub": "sub", "session": "s", "epoch": 0, "seq": 2}
        ]


def test_what_was_not_handed_over_when_it_overflowed_is_not_told() -> None:
    hub = relay(soft_limit_bytes=400, hard_limit_bytes=400)
    peer = consumer(hub, capacity_bytes=1)
    for seq in range(1, 20):
        hub.ingest(event(f"s{seq}", seq))
    hub.ingest(event("t1", 1, session="t"))
    flush(hub)
    assert peer.closing == "slow-consumer"
    sink(peer).capacity_bytes = None
    drain(hub, peer)
    assert frames_of(peer, "closing")[0]["delivered"] == [
        {"sub": "sub", "session": "s", "epoch": 0, "seq": 1}
    ]


def test_what_a_replay_has_read_is_not_told_when_what_waits_before_it_is_too_much() -> None:
    hub = relay(soft_limit_bytes=1000, hard_limit_bytes=2000)
    emit(hub, 1, 2, 3)
    peer = consumer(hub, filters.parse({"session": "s"}), "all", capacity_bytes=10)
    # Whoever resumes so far ahead is sent what comes before that at once.
    ahead = [ResumePoint("t", (9, 0))]
    assert hub.subscribe(peer, "live", filters.parse({"session": "t"}), None, ahead) is None
    for seq in range(20):
        hub.ingest(event(f"t{seq}", seq, session="t"))
    hub.drain_peer(peer)
    assert peer.closing == "slow-consumer"
    sink(peer).capacity_bytes = None
    drain(hub, peer)
    assert ids(peer) == ["t0"]
    assert [item["session"] for item in frames_of(peer, "closing")[0]["delivered"]] == ["t"]


def test_the_farewell_follows_a_begun_frame_beyond_the_hard_limit() -> None:
    # Such as one that other limits allowed, since taken over.
    hub = relay(soft_limit_bytes=100, hard_limit_bytes=400)
    peer = consumer(hub, capacity_bytes=10)
    hub.ingest(event("s1", 1, data={"text": "x" * 1000}))
    flush(hub)
    assert end(hub, peer) == {("sub", "s"): (0, 1)}
    assert ids(peer) == ["s1"]


def test_nothing_is_told_where_nothing_went_out() -> None:
    hub = relay()
    peer = consumer(hub, capacity_bytes=0)
    emit(hub, 1, 2)
    assert end(hub, peer) == {}


def test_each_subscription_is_told_its_own() -> None:
    hub = relay()
    peer = consumer(hub, filters.parse({"session": "s"}))
    emit(hub, 1)
    assert hub.subscribe(peer, "late", filters.EMPTY, None) is None
    assert hub.subscribe(peer, "none", filters.parse({"session": "u"}), None) is None
    emit(hub, 1, session="t")
    assert end(hub, peer) == {("sub", "s"): (0, 1), ("late", "t"): (0, 1)}


def test_one_that_subscribed_later_is_not_told_what_others_were_sent_before() -> None:
    hub = relay()
    first = consumer(hub)
    emit(hub, 1, 2)
    second = consumer(hub)
    assert end(hub, second) == {}
    assert end(hub, first) == {("sub", "s"): (0, 2)}


def test_a_backfill_that_was_sent_does_not_lower_the_position() -> None:
    hub = relay()
    peer = consumer(hub)
    emit(hub, 10, 20, 15)
    late = consumer(hub)
    emit(hub, 12)
    assert end(hub, peer) == {("sub", "s"): (0, 20)}
    assert end(hub, late) == {("sub", "s"): (0, 12)}


def test_a_backfill_that_was_not_sent_holds_the_position_down() -> None:
    hub = relay()
    peer = consumer(hub)
    emit(hub, 10, 20)
    sink(peer).capacity_bytes = 0
    emit(hub, 15)
    assert end(hub, peer) == {("sub", "s"): (0, 10)}


def test_a_rider_of_a_backfill_that_was_not_sent_holds_the_position_down() -> None:
    hub = relay()
    peer = consumer(hub)
    emit(hub, 10, 20, 15)
    sink(peer).capacity_bytes = 0
    ingest(hub, event("rider"))
    assert end(hub, peer) == {("sub", "s"): (0, 15)}
    resumed = consumer(hub, from_=[ResumePoint("s", (0, 15))])
    drain(hub, resumed)
    assert ids(resumed) == ["rider", "s20"]


def test_a_rider_in_order_does_not_hold_the_position_down() -> None:
    hub = relay()
    peer = consumer(hub)
    emit(hub, 10, 20)
    sink(peer).capacity_bytes = 0
    ingest(hub, event("rider"))
    assert end(hub, peer) == {("sub", "s"): (0, 20)}


def test_what_is_not_held_holds_the_position_down_all_the_same() -> None:
    # It was queued live and went unsent; who resumes is told that it is gone.
    hub = relay(buffer_events=2)
    peer = consumer(hub)
    emit(hub, 1, 2, 3, 4)
    sink(peer).capacity_bytes = 0
    emit(hub, 1)
    assert end(hub, peer) == {("sub", "s"): (0, 0)}
    resumed = consumer(hub, from_=[ResumePoint("s", (0, 0))])
    drain(hub, resumed)
    assert len(frames_of(resumed, "replay-exhausted")) == 1


def test_a_resumed_session_is_told_even_if_nothing_of_it_came() -> None:
    hub = relay()
    peer = consumer(hub, from_=[ResumePoint("s", (3, 7))])
    drain(hub, peer)
    assert end(hub, peer) == {("sub", "s"): (3, 7)}


def test_a_replay_that_was_cut_short_is_told_as_far_as_it_went(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catchup, "SLICE_EVENTS", 2)
    hub = relay()
    emit(hub, *range(1, 8))
    peer = consumer(hub, from_=[ResumePoint("s", (0, 1))])
    hub.drain_peer(peer)
    emit(hub, 8)
    sink(peer).capacity_bytes = 0
    hub.drain_peer(peer)
    assert end(hub, peer) == {("sub", "s"): (0, 3)}


def test_what_the_group_was_sent_is_not_told_to_one_that_is_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catchup, "SLICE_EVENTS", 1)
    hub = relay()
    live = consumer(hub)
    emit(hub, 1, 2, 3)
    peer = consumer(hub, from_="all")
    hub.drain_peer(peer)
    emit(hub, 4)
    assert end(hub, peer) == {("sub", "s"): (0, 1)}
    assert end(hub, live) == {("sub", "s"): (0, 4)}


def test_a_backfill_behind_the_cursor_of_a_replay_holds_the_position_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(catchup, "SLICE_EVENTS", 2)
    hub = relay()
    emit(hub, 10, 20, 30)
    peer = consumer(hub, from_="all")
    hub.drain_peer(peer)
    sink(peer).capacity_bytes = 0
    emit(hub, 15)
    assert end(hub, peer) == {("sub", "s"): (0, 10)}


def test_a_paced_session_is_told_up_to_where_its_cursor_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catchup, "SLICE_EVENTS", 1)
    hub = relay(soft_limit_bytes=500, hard_limit_bytes=6_000)
    emit(hub, 1, session="other")
    peer = consumer(hub, from_=[ResumePoint("other", (0, 0))], capacity_bytes=0)
    emit(hub, 10, 20, 30)  # live, until the outbox is crowded
    emit(hub, 15)
    sink(peer).capacity_bytes = peer.outbox.queued_bytes
    hub.drain_peer(peer)
    replay = peer.subscriptions["sub"].replay
    assert replay is not None
    assert list(replay.behind) == ["s"]
    told = end(hub, peer)
    assert told[("sub", "s")] == (0, 10)
    resumed = consumer(hub, from_=[ResumePoint("s", told[("sub", "s")])])
    drain(hub, resumed)
    assert {"s10", "s15", "s20", "s30"} <= {*ids(peer), *ids(resumed)}


@pytest.mark.parametrize(
    ("severities", "told"),
    [
        ("nd", (0, 1)),  # the dropped one was not delivered
        ("ndn", (0, 3)),
        ("ndndd", (0, 3)),
        ("nddn", (0, 4)),
    ],
)
def test_what_was_dropped_is_not_told_and_holds_nothing_down(severities: str, told: tuple[int, int]) -> None:
    hub = relay(soft_limit_bytes=1, hard_limit_bytes=100_000)
    peer = consumer(hub, capacity_bytes=0)
    emit(hub, 0, session="first")
    for seq, letter in enumerate(severities, 1):
        emit(hub, seq, severity="debug" if letter == "d" else "notice")
    sink(peer).capacity_bytes = None
    drain(hub, peer)
    assert end(hub, peer)[("sub", "s")] == told


def test_what_was_dropped_before_a_subscription_is_not_its_own() -> None:
    hub = relay(soft_limit_bytes=1, hard_limit_bytes=100_000)
    peer = consumer(hub, capacity_bytes=0)
    for seq, severity in enumerate(("notice", "debug", "notice", "debug"), 1):
        emit(hub, seq, severity=severity)
    assert hub.subscribe(peer, "late", filters.EMPTY, None) is None
    sink(peer).capacity_bytes = None
    drain(hub, peer)
    assert end(hub, peer) == {("sub", "s"): (0, 3)}


def test_what_was_dropped_is_not_told_when_its_session_is_paced() -> None:
    hub = relay(soft_limit_bytes=500, hard_limit_bytes=20_000)
    peer = consumer(hub, capacity_bytes=0)
    emit(hub, 0, 1, 2)
    emit(hub, 0, session="t", severity="debug")
    assert peer.outbox.dropped_events == 1
    assert hub.subscribe(peer, "again", filters.parse({"session": "s"}), None, "all") is None
    hub.ingest(event("rider", session="t"))
    assert peer.subscriptions["sub"].replay is not None
    assert ("sub", "t") not in end(hub, peer)


def test_one_delivery_for_two_subscriptions_advances_both() -> None:
    hub = relay()
    peer = consumer(hub, filters.parse({"session": "s"}))
    assert hub.subscribe(peer, "both", filters.EMPTY, 0) is None
    emit(hub, 1)
    assert end(hub, peer) == {("sub", "s"): (0, 1), ("both", "s"): (0, 1)}


def many_subscriptions(**limits: int) -> tuple[Relay, Peer]:
    """One connection that takes nothing yet, with more filters that match than an Event is told by."""
    hub = relay(**limits)
    peer = consumer(hub, capacity_bytes=0)
    for number in range(30):
        filter_ = filters.parse({"agent": ["coder", str(number)]})
        assert hub.subscribe(peer, str(number), filter_, None) is None
    return hub, peer


def test_an_event_for_very_many_subscriptions_advances_them_all() -> None:
    hub, peer = many_subscriptions()
    emit(hub, 1, 2, 3)
    room_for(peer, "s3")
    hub.drain_peer(peer)
    emit(hub, 7, session="t")
    told = end(hub, peer)
    # The third was begun, and so it goes out whole.
    assert {position for (_, session), position in told.items() if session == "s"} == {(0, 3)}
    assert {sub for sub, session in told if session == "s"} == {"sub", *map(str, range(30))}
    assert {position for (_, session), position in told.items() if session == "t"} <= {(0, 6)}, "not sent"


def test_a_backfill_for_very_many_subscriptions_holds_them_down() -> None:
    hub, peer = many_subscriptions()
    sink(peer).capacity_bytes = None
    emit(hub, 2, 9)
    sink(peer).capacity_bytes = 0
    emit(hub, 5)
    assert set(end(hub, peer).values()) <= {(0, 2), (0, 4)}


def test_what_went_out_for_very_many_subscriptions_is_told_though_it_is_gone() -> None:
    hub, peer = many_subscriptions(buffer_events=3)
    for number, seq in enumerate((4, 5, 6, 7, 5, 6)):
        hub.ingest(event(f"e{number}", seq))
    flush(hub)
    room_for(peer, "e2")
    hub.drain_peer(peer)
    assert set(end(hub, peer).values()) == {(0, 4)}, "the backfill of 5 has yet to be sent"


def test_a_rider_that_went_out_for_very_many_subscriptions_hides_nothing() -> None:
    hub, peer = many_subscriptions()
    sink(peer).capacity_bytes = None
    emit(hub, 1, 2)
    sink(peer).capacity_bytes = 0
    hub.ingest(event("r"))
    hub.ingest(event("t1", 1, session="t"))
    flush(hub)
    room_for(peer, "t1")
    hub.drain_peer(peer)
    assert {position for (_, session), position in end(hub, peer).items() if session == "s"} == {(0, 2)}


@pytest.mark.parametrize(("severities", "told"), [("nd", (0, 1)), ("ndn", (0, 3)), ("nddn", (0, 4))])
def test_what_was_dropped_for_very_many_subscriptions_is_not_told(
    severities: str, told: tuple[int, int]
) -> None:
    hub, peer = many_subscriptions(soft_limit_bytes=1, hard_limit_bytes=100_000)
    emit(hub, 0, session="first")
    for seq, letter in enumerate(severities, 1):
        emit(hub, seq, severity="debug" if letter == "d" else "notice")
    sink(peer).capacity_bytes = None
    drain(hub, peer)
    found = [position for (_, session), position in end(hub, peer).items() if session == "s"]
    assert found == [told] * 31


def test_what_is_kept_of_an_event_does_not_grow_with_the_subscriptions_it_serves() -> None:
    hub, peer = many_subscriptions()
    emit(hub, *range(20))
    emit(hub, *range(20), session="t")
    queued = [batch for batch, _ in peer.outbox.unsent()]
    assert len(queued) == 40
    assert max(len(batch.before) for batch in queued) == 1
    assert {len(batch.bounds()) for batch in queued} == {1}
    assert {len(scopes) for batch in queued for scopes in batch.scopes or ()} == {1}


def test_of_a_long_batch_the_beginning_is_told_by_subscription(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cohort, "MAX_TOLD", 4)
    hub, peer = two_subscriptions_of_five_sessions()
    sink(peer).capacity_bytes = 0
    for seq in range(2, 6):
        hub.ingest(event(f"s0{seq}", seq, session="s0"))
    flush(hub)
    (queued,) = [batch for batch, _ in peer.outbox.unsent()]
    assert [len(scopes) for scopes in queued.scopes or ()] == [2, 2, 1, 1]
    told = end(hub, peer)
    assert {position for (_, session), position in told.items() if session == "s0"} == {(0, 1)}


def test_a_replaced_subscription_begins_anew() -> None:
    hub = relay()
    peer = consumer(hub)
    emit(hub, 1)
    assert hub.subscribe(peer, "sub", filters.parse({"severity": {"gte": "error"}}), None) is None
    emit(hub, 2)
    assert end(hub, peer) == {}


def two_subscriptions_of_five_sessions() -> tuple[Relay, Peer]:
    hub = relay()
    peer = consumer(hub)
    assert hub.subscribe(peer, "other", filters.EMPTY, 0) is None
    for number in range(5):
        emit(hub, 1, session=f"s{number}")
    return hub, peer


def test_what_working_positions_out_costs_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    hub, peer = two_subscriptions_of_five_sessions()
    monkeypatch.setattr(delivered, "MAX_COST", 7)
    told = list(end(hub, peer))
    assert told == [*(("sub", f"s{number}") for number in range(5)), ("other", "s0"), ("other", "s1")]


def test_those_of_a_consumer_that_is_behind_cost_more(monkeypatch: pytest.MonkeyPatch) -> None:
    hub, peer = two_subscriptions_of_five_sessions()
    sink(peer).capacity_bytes = 0
    emit(hub, 2, session="s0")
    monkeypatch.setattr(delivered, "MAX_COST", 6 * delivered.EXACT_COST)
    told = end(hub, peer)
    assert len(told) == 6
    assert told[("sub", "s0")] == (0, 1)


@pytest.mark.parametrize(("character", "size_bytes"), [("x", 1), ("\x01", 6), ('"', 2), ("é", 2)])
def test_they_fit_into_a_message_that_clients_take(
    character: str, size_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivered, "MAX_BYTES", 10_000)
    hub = relay()
    peer = consumer(hub)
    for number in range(12):
        emit(hub, 1, session=f"{number:02}" + character * (2000 // size_bytes))
    emit(hub, 1, session="short")
    told = end(hub, peer)
    assert len(received(peer)[-1]) < 10_100
    assert len(told) == 5
    assert ("sub", "short") in told


def test_the_sessions_written_last_are_told_of_where_not_all_are(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = relay(max_from_positions=2)
    peer = consumer(hub)
    for session in "abcda":
        emit(hub, 1, session=session)
    assert set(end(hub, peer)) == {("sub", "a"), ("sub", "d")}


def test_the_positions_of_most_consumers_are_told_whole() -> None:
    hub = relay()
    peer = consumer(hub)
    for number in range(hub.limits.max_sessions):
        emit(hub, 1, session=f"s{number}")
    sink(peer).capacity_bytes = 0
    emit(hub, 2, session="s0")
    assert len(end(hub, peer)) == hub.limits.max_sessions


def test_every_subscription_is_told_as_many_sessions_as_it_may_resume() -> None:
    hub = relay(max_from_positions=2)
    peer = consumer(hub)
    assert hub.subscribe(peer, "other", filters.EMPTY, 0) is None
    for session in "stu":
        emit(hub, 1, session=session)
    assert sorted(sub for sub, _ in end(hub, peer)) == ["other", "other", "sub", "sub"]


@pytest.mark.parametrize("framing", [Framing.SSE, Framing.SSE_UNCHUNKED, Framing.JSONL])
def test_other_framings_have_no_farewell_of_the_hub(framing: Framing) -> None:
    hub = relay()
    peer = consumer(hub, framing=framing, capacity_bytes=10)
    emit(hub, 1, 2)
    hub.close(peer, "shutdown", 1001)
    sink(peer).capacity_bytes = None
    drain(hub, peer)
    assert ids(peer) == ["s1"]


def test_a_connection_ends_once() -> None:
    hub = relay()
    peer = consumer(hub)
    hub.close(peer, "shutdown", 1001)
    hub.close(peer, "ping-timeout", 1008)
    assert peer.closing == "shutdown"
    assert hub.stats.disconnects == {"shutdown": 1}
    assert len(frames_of(peer, "closing")) + len(peer.outbox.queue or ()) == 1


def test_nothing_is_delivered_to_a_connection_that_ends() -> None:
    hub = relay()
    peer = consumer(hub)
    hub.close(peer, "shutdown", 1001)
    emit(hub, 1)
    assert not peer.push(b"x")
    drain(hub, peer)
    assert ids(peer) == []
    assert hub.subscribe(peer, "late", filters.EMPTY, None) is None
    assert not hub.fanout.index.groups


def test_closing_in_the_middle_of_a_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fanout, "SLICE_COST_BYTES", 1)
    hub = relay()
    peers = [consumer(hub) for _ in range(4)]
    hub.ingest(event("s1", 1))
    assert hub.flush()
    hub.ingest(event("s2", 2))
    told = [end(hub, peer) for peer in peers[:3]]
    flush(hub)
    assert told == [{("sub", "s"): (0, 2)}] * 3
    assert [ids(peer) for peer in peers] == [["s1", "s2"]] * 4


def test_a_detached_connection_leaves_nothing() -> None:
    hub = relay()
    peer = hub.attach("test", Framing.WEBSOCKET, MemorySink(0))
    peer.role = "both"
    hub.ingest(event("s1", 1), peer)
    for number in range(3):
        assert hub.subscribe(peer, f"{number}", filters.parse({"session": f"{number}"}), None, "all") is None
    emit(hub, 2, session="1")
    hub.detach(peer)
    flush(hub)
    assert_empty(hub)
    assert peer.outbox.queue is None
    assert not hub.drain_peer(peer)


def test_what_went_out_before_the_queue_began_is_told_though_something_was_dropped_since() -> None:
    hub = relay(soft_limit_bytes=1, hard_limit_bytes=100_000, buffer_events=1)
    peer = consumer(hub)
    emit(hub, 20, 10)
    sink(peer).capacity_bytes = 1
    emit(hub, 15)  # begun, and so as good as sent
    emit(hub, 40)
    emit(hub, 50, severity="debug")
    assert peer.outbox.dropped_events == 1
    assert end(hub, peer) == {("sub", "s"): (0, 20)}
