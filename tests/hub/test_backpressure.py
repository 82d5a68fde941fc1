"""Slow consumers: kept however slow below the hard limit, never told half a frame, never evicted unfairly (§8.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aep_relay.hub.behind import MAX_AT_ONCE
from aep_relay.protocol import filters
from aep_relay.protocol.framing import Framing
from aep_relay.protocol.position import ResumePoint
from tests.fakes.sink import frames_of, ids, received
from tests.hub.build import consumer, drain, event, flush, ingest, relay, sink

if TYPE_CHECKING:
    from aep_relay.hub.peer import Peer
    from aep_relay.hub.relay import Relay

FRAME_BYTES = len(event("e000", 100).raw) + 4


def emit(hub: Relay, start: int, count: int, severity: str = "notice") -> None:
    """Ingest and flush one at a time, so that limits are met at the grain of one Event."""
    for seq in range(start, start + count):
        ingest(hub, event(f"e{seq}", seq, severity=severity))


def catch_up(hub: Relay, peer: Peer) -> list[str]:
    sink(peer).capacity_bytes = None
    drain(hub, peer)
    return ids(peer)


def test_one_that_keeps_up_queues_nothing() -> None:
    hub = relay()
    peer = consumer(hub)
    emit(hub, 0, 50)
    assert peer.outbox.queue is None
    assert sink(peer).wakes == 0


def test_one_that_falls_behind_is_woken_once_and_loses_nothing() -> None:
    hub = relay()
    peer = consumer(hub, capacity_bytes=100)
    emit(hub, 0, 20)
    assert sink(peer).wakes == 1
    assert catch_up(hub, peer) == [f"e{seq}" for seq in range(20)]


def test_above_the_soft_limit_debug_and_info_go_and_nothing_else_does() -> None:
    hub = relay(soft_limit_bytes=3 * FRAME_BYTES, hard_limit_bytes=100 * FRAME_BYTES)
    peer = consumer(hub, capacity_bytes=0)
    emit(hub, 0, 3, "debug")
    emit(hub, 3, 1, "notice")
    emit(hub, 4, 2, "info")
    emit(hub, 6, 2, "error")
    assert peer.outbox.dropped_events == 2
    assert catch_up(hub, peer) == ["e0", "e1", "e2", "e3", "e6", "e7"]
    emit(hub, 8, 1, "debug")
    assert ids(peer)[-1] == "e8", "one that has caught up gets everything again"
    hub.detach(peer)
    assert hub.stats.dropped_events == 2


def test_others_do_not_notice() -> None:
    hub = relay(soft_limit_bytes=FRAME_BYTES, hard_limit_bytes=3 * FRAME_BYTES)
    slow, fast = consumer(hub, capacity_bytes=0), consumer(hub)
    emit(hub, 0, 30, "debug")
    emit(hub, 30, 30)
    assert slow.closing == "slow-consumer"
    assert fast.closing is None
    assert ids(fast) == [f"e{seq}" for seq in range(60)]


@pytest.mark.parametrize("framing", [Framing.WEBSOCKET, Framing.SSE])
def test_above_the_hard_limit_the_connection_ends(framing: Framing) -> None:
    hub = relay(soft_limit_bytes=FRAME_BYTES, hard_limit_bytes=5 * FRAME_BYTES)
    peer = consumer(hub, framing=framing, capacity_bytes=100)
    emit(hub, 0, 4)
    assert sink(peer).closed is None
    emit(hub, 4, 10)
    assert sink(peer).closed == ("slow-consumer", 1013)
    assert hub.stats.disconnects == {"slow-consumer": 1}
    assert catch_up(hub, peer) == ["e0"], "the frame that was begun is finished, what follows is not sent"
    if framing is Framing.WEBSOCKET:
        (closing,) = frames_of(peer, "closing")
        assert closing["delivered"] == [{"sub": "sub", "session": "s", "epoch": 0, "seq": 0}]


def test_below_the_hard_limit_a_consumer_is_kept_however_slow() -> None:
    hub = relay(soft_limit_bytes=2 * FRAME_BYTES, hard_limit_bytes=10 * FRAME_BYTES)
    peer = consumer(hub, capacity_bytes=0)
    for seq in range(0, 200, 5):
        emit(hub, seq, 5)
        sink(peer).capacity_bytes = 5 * FRAME_BYTES
        hub.drain_peer(peer)
        sink(peer).capacity_bytes = 0
    assert peer.closing is None
    assert catch_up(hub, peer) == [f"e{seq}" for seq in range(200)]


def test_one_large_event_never_ends_one_that_had_kept_up() -> None:
    hub = relay(soft_limit_bytes=1_000, hard_limit_bytes=2_000)
    peer = consumer(hub, capacity_bytes=0)
    ingest(hub, event("big", 1, data={"text": "x" * 50_000}))
    assert peer.closing is None
    assert catch_up(hub, peer) == ["big"]


def test_a_large_event_counts_for_what_comes_after_it() -> None:
    hub = relay(soft_limit_bytes=1_000, hard_limit_bytes=2_000)
    peer = consumer(hub, capacity_bytes=0)
    ingest(hub, event("big", 1, data={"text": "x" * 50_000}))
    ingest(hub, event("next", 2))
    assert peer.closing == "slow-consumer"


def test_limits_are_checked_batch_by_batch_within_one_flush() -> None:
    # A batch is sealed at a quarter of the soft limit: one burst cannot queue much more than the hard limit.
    hub = relay(soft_limit_bytes=4 * FRAME_BYTES, hard_limit_bytes=8 * FRAME_BYTES)
    peer = consumer(hub, capacity_bytes=0)
    for seq in range(100):
        hub.ingest(event(f"e{seq}", seq))
    flush(hub)
    assert peer.closing == "slow-consumer"


def test_a_replaying_consumer_is_paced_and_gets_everything() -> None:
    hub = relay(soft_limit_bytes=2 * FRAME_BYTES, hard_limit_bytes=6 * FRAME_BYTES)
    emit(hub, 0, 20)
    peer = consumer(hub, from_=[ResumePoint("s", (0, 3))], capacity_bytes=10)
    for start in range(20, 120, 10):
        for session in ("s", "t", "u"):
            for seq in range(start, start + 10):
                hub.ingest(event(f"{session}{seq}", seq, session=session, severity="notice"))
        flush(hub)
        hub.drain_peer(peer)
        sink(peer).capacity_bytes = 30
    assert peer.closing is None
    got = catch_up(hub, peer)
    assert [id_ for id_ in got if id_[0] in "es"] == [f"e{n}" for n in range(4, 20)] + [
        f"s{n}" for n in range(20, 120)
    ]
    for session in "tu":
        assert [id_ for id_ in got if id_[0] == session] == [f"{session}{seq}" for seq in range(20, 120)]


def test_one_burst_does_not_end_a_replaying_consumer() -> None:
    # Nothing of the burst is queued before it is flushed: what waits to be handed over counts, too.
    hub = relay(soft_limit_bytes=2 * FRAME_BYTES, hard_limit_bytes=6 * FRAME_BYTES)
    emit(hub, 0, 5)
    peer = consumer(hub, from_=[ResumePoint("s", (0, 0))], capacity_bytes=0)
    for seq in range(300):
        hub.ingest(event(f"t{seq}", seq, session="t"))
    flush(hub)
    assert peer.closing is None
    got = catch_up(hub, peer)
    assert [id_ for id_ in got if id_[0] == "t"] == [f"t{seq}" for seq in range(300)]


def test_a_live_subscription_beside_a_replay_is_paced_as_well() -> None:
    hub = relay(soft_limit_bytes=2 * FRAME_BYTES, hard_limit_bytes=6 * FRAME_BYTES)
    emit(hub, 0, 5)
    peer = consumer(hub, filters.parse({"session": "t"}), capacity_bytes=0)
    assert hub.subscribe(peer, "replay", filters.parse({"session": "s"}), None, "all") is None
    for seq in range(100):
        ingest(hub, event(f"t{seq}", seq, session="t"))
    assert peer.closing is None
    got = catch_up(hub, peer)
    assert [id_ for id_ in got if id_[0] == "t"] == [f"t{seq}" for seq in range(100)]


def test_a_backfill_to_a_crowded_replay_is_not_lost() -> None:
    hub = relay(soft_limit_bytes=2 * FRAME_BYTES, hard_limit_bytes=40 * FRAME_BYTES)
    emit(hub, 100, 5)
    peer = consumer(hub, from_=[ResumePoint("s", (0, 0))], capacity_bytes=0)
    for seq in (10, 20, 30, 40, 15, 5):
        ingest(hub, event(f"t{seq}", seq, session="t"))
    got = catch_up(hub, peer)
    assert {id_ for id_ in got if id_[0] == "t"} == {"t5", "t10", "t15", "t20", "t30", "t40"}


def test_what_cannot_be_read_later_can_end_a_replaying_consumer() -> None:
    hub = relay(soft_limit_bytes=2 * FRAME_BYTES, hard_limit_bytes=6 * FRAME_BYTES)
    emit(hub, 0, 5)
    peer = consumer(hub, from_="all", capacity_bytes=0)
    for number in range(50):
        ingest(hub, event(f"a{number}", session=None, type="agent.online"))
    assert peer.closing == "slow-consumer", "agent-scoped Events are live only, and memory is bounded"


def test_what_a_stalled_replay_keeps_in_mind_is_bounded() -> None:
    hub = relay(soft_limit_bytes=FRAME_BYTES, hard_limit_bytes=40 * FRAME_BYTES, max_sessions=5)
    emit(hub, 0, 5)
    peer = consumer(hub, from_=[ResumePoint("s", (0, 0))], capacity_bytes=0)
    hub.drain_peer(peer)
    for number in range(30):
        ingest(hub, event(f"x{number}", 0, session=f"x{number}"))
        replay = peer.subscriptions["sub"].replay
        assert replay is not None
        assert len(replay.behind) <= 10
    for number in range(200):
        ingest(hub, event(f"y{number}", 0, session=f"y{number}"))
    assert peer.closing == "slow-consumer"


def test_a_queue_that_drains_in_mid_frame_goes_on_in_mid_frame() -> None:
    hub = relay()
    peer = consumer(hub, capacity_bytes=1)
    emit(hub, 0, 10)
    while hub.drain_peer(peer):
        sink(peer).capacity_bytes = 7
    assert ids(peer) == [f"e{seq}" for seq in range(10)]


def test_direct_frames_keep_their_place_among_events() -> None:
    hub = relay()
    peer = consumer(hub, framing=Framing.JSONL, capacity_bytes=0)
    hub.ingest(event("e0", 0))
    peer.push(b'{"type":"pong"}\n')
    hub.ingest(event("e1", 1))
    flush(hub)
    catch_up(hub, peer)
    assert [b"pong" in line for line in received(peer)] == [False, True, False]


def test_a_direct_frame_above_the_hard_limit_ends_the_connection() -> None:
    hub = relay(soft_limit_bytes=10, hard_limit_bytes=FRAME_BYTES)
    peer = consumer(hub, capacity_bytes=0)
    emit(hub, 0, 1)
    assert peer.push(b"x" * 10)
    assert not peer.push(b"y")
    assert peer.closing == "slow-consumer"


def test_one_that_takes_nothing_for_too_long_is_aborted() -> None:
    hub = relay(stalled_timeout_seconds=90)
    peer, idle = consumer(hub, capacity_bytes=0), consumer(hub)
    emit(hub, 0, 1)
    assert not hub.abort_stalled(0.0)
    hub.abort_stalled(89.9)
    assert sink(peer).aborted is None
    hub.abort_stalled(90.0)
    assert sink(peer).aborted == "stalled"
    assert sink(idle).aborted is None
    assert not hub._behind


def test_very_many_are_aborted_a_few_at_a_time() -> None:
    hub = relay(stalled_timeout_seconds=90)
    peers = [consumer(hub, capacity_bytes=0) for _ in range(MAX_AT_ONCE + 5)]
    emit(hub, 0, 1)
    assert not hub.abort_stalled(0.0)
    assert hub.abort_stalled(90.0)
    assert [sink(peer).aborted for peer in peers].count("stalled") == MAX_AT_ONCE
    assert not hub.abort_stalled(90.0)
    assert {sink(peer).aborted for peer in peers} == {"stalled"}


def test_one_that_is_patient_is_neither_aborted_nor_counted() -> None:
    hub = relay(stalled_timeout_seconds=90)
    peer = consumer(hub, capacity_bytes=0)
    peer.patient = True
    emit(hub, 0, 1)
    for now_seconds in (0.0, 90.0, 1000.0):
        hub.abort_stalled(now_seconds)
    assert sink(peer).aborted is None
    assert "stalled" not in hub.stats.disconnects
    catch_up(hub, peer)


def test_one_byte_is_progress() -> None:
    hub = relay(stalled_timeout_seconds=90)
    peer = consumer(hub, capacity_bytes=0)
    emit(hub, 0, 1)
    hub.abort_stalled(0.0)
    sink(peer).capacity_bytes = 1
    hub.drain_peer(peer)
    hub.abort_stalled(90.0)
    hub.abort_stalled(179.9)
    assert sink(peer).aborted is None
    hub.abort_stalled(180.0)
    assert sink(peer).aborted == "stalled"


def test_one_that_caught_up_and_fell_behind_again_has_all_the_time_again() -> None:
    hub = relay(stalled_timeout_seconds=90)
    peer = consumer(hub, capacity_bytes=0)
    emit(hub, 0, 1)
    hub.abort_stalled(0.0)
    catch_up(hub, peer)
    hub.abort_stalled(80.0)
    sink(peer).capacity_bytes = 0
    emit(hub, 1, 1)
    hub.abort_stalled(100.0)
    hub.abort_stalled(189.0)
    assert sink(peer).aborted is None
    hub.abort_stalled(190.0)
    assert sink(peer).aborted == "stalled"


def test_a_connection_that_broke_is_sent_nothing_and_forgotten() -> None:
    hub = relay()
    peer = consumer(hub)
    sink(peer).broken = True
    emit(hub, 0, 3)
    assert peer.closing == "gone"
    assert not peer.push(b"x")
    hub.close(peer, "shutdown", 1001)
    assert sink(peer).closed == ("shutdown", 1001), "what it sent is read no further"
    assert not peer.outbox
    hub.detach(peer)
    assert not hub.peers


def test_a_connection_that_breaks_while_it_drains_is_discarded() -> None:
    hub = relay()
    peer = consumer(hub, capacity_bytes=10)
    emit(hub, 0, 3)
    sink(peer).broken = True
    assert not hub.drain_peer(peer)
    assert peer.outbox.queue is None
    emit(hub, 3, 1)
    assert peer.closing == "gone"
