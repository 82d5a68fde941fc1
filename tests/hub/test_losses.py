"""Losses: what a chained relay needs to know of what is held, and how consumers are told of what is not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from aep_relay.hub.buffer import Lost
from aep_relay.hub.limits import Limits
from aep_relay.hub.policy import FULL
from aep_relay.hub.positions import before
from aep_relay.hub.replay import plan
from aep_relay.hub.store import Store
from aep_relay.protocol import filters
from aep_relay.protocol.frames import pong, text_frame
from aep_relay.protocol.position import MAX_POSITION, ResumePoint
from tests.fakes.sink import frames_of, ids
from tests.hub.build import command, consumer, drain, event, exhausted, flush, ingest, relay, sink

if TYPE_CHECKING:
    from aep_relay.hub.peer import Peer
    from aep_relay.hub.relay import Relay
    from aep_relay.protocol.position import Position


def test_what_is_held() -> None:
    store = Store(Limits())
    store.admit(event("a", 1))
    assert store.holds(event("a", 9))
    assert not store.holds(event("b", 1))
    assert not store.holds(event("a", 1, session="other"))
    assert not store.holds(event("a", None, type="agent.status", session=None))


def test_who_watches_is_told_of_every_eviction() -> None:
    gone: list[str] = []
    store = Store(Limits(buffer_events=3, max_sessions=2))
    store.watchers.append(lambda item: gone.append(item.id))
    for seq in range(4):
        store.admit(event(f"a{seq}", seq))
        store.admit(event(f"r{seq}"))
    assert gone == ["a0", "r0", "a1", "r1", "a2", "r2"][: len(gone)]
    assert len(gone) == store.evicted_events == 8 - store.events
    for session in ("t", "u"):
        store.admit(event("x", 0, session=session))
    assert len(gone) == 8
    assert gone == ["a0", "r0", "a1", "r1", "a2", "r2", "r3", "a3"]


def test_a_loss_is_exact() -> None:
    store = Store(Limits())
    for seq in (3, 5):
        store.admit(event(f"a{seq}", seq))
    store.lose("s", (0, 9))
    assert store.get("s") is None
    assert store.size_bytes == store.events == 0
    assert (exhausted(store.lost("s"), (0, 7)), exhausted(store.lost("s"), (0, 8))) == (True, False)
    assert store.earliest("s") == (0, 9)
    assert store.admit(event("a9", 9)) == (0, 9)
    assert store.earliest("s") == (0, 9)
    assert exhausted(store.lost("s"), (0, 5))
    assert not exhausted(store.lost("s"), (0, 9))


def test_a_loss_takes_nothing_that_came_after_it() -> None:
    store = Store(Limits())
    for seq in (3, 9, 10):
        store.admit(event(f"a{seq}", seq))
    store.lose("s", (0, 9))
    buffer = store.get("s")
    assert buffer is not None
    assert [item.id for item in buffer.read(buffer.cursor_at_start(), 9, 999)[0]] == ["a9", "a10"]
    store.lose("s", (0, 4))
    assert store.lost("s") == Lost((0, 8), riders=False)
    assert store.events == 2


def test_a_loss_of_a_session_of_which_nothing_was_held() -> None:
    store = Store(Limits(max_evicted_sessions=2))
    for session in ("t", "u", "v"):
        store.lose(session, (1, 0))
    assert store.lost("t") is None
    assert store.lost("v") == Lost((0, MAX_POSITION), riders=False)
    store.lose("v", (0, 5))
    assert store.lost("v") == Lost((0, MAX_POSITION), riders=False)
    store.lose("w", (0, 0))
    assert store.lost("w") is None


def test_who_reads_is_told_of_a_loss_ahead() -> None:
    hub = relay()
    ingest(hub, *(event(f"a{seq}", seq) for seq in range(3)))
    peer = consumer(hub, from_=[ResumePoint("s", (0, 0))])
    hub.store.lose("s", (0, 7))
    ingest(hub, event("a7", 7))
    while hub.drain_peer(peer):
        pass
    said = bytes(sink(peer).taken)
    assert b'"replay-exhausted"' in said
    assert b'"earliest":{"epoch":0,"seq":7}' in said
    assert b'"id": "a1"' not in said
    assert b'"id": "a7"' in said


@given(st.integers(0, 3), st.sampled_from([0, 1, MAX_POSITION]))
def test_the_position_before(epoch: int, seq: int) -> None:
    found = before((epoch, seq))
    assert (found is None) == ((epoch, seq) == (0, 0))
    assert found is None or found < (epoch, seq)


def test_the_others_are_replayed_whole() -> None:
    store = Store(Limits())
    for session in ("s", "t"):
        for seq in range(2):
            store.admit(event(f"{session}{seq}", seq, session=session))
    from_ = [ResumePoint("s", (0, 0))]
    assert list(plan(store, filters.EMPTY, from_, ends=False)[0].behind) == ["s"]
    replay, base = plan(store, filters.EMPTY, from_, ends=False, others=True)
    assert list(replay.behind) == ["s", "t"]
    assert base == {"s": (0, 0)}
    only_s = filters.parse({"session": "s"})
    assert list(plan(store, only_s, from_, ends=False, others=True)[0].behind) == ["s"]


def told_at_the_end(hub: Relay, peer: Peer) -> dict[tuple[str, str], Position]:
    """Let ``peer`` take everything, and return the positions that its ``closing`` frame tells."""
    sink(peer).capacity_bytes = None
    drain(hub, peer)
    (closing,) = frames_of(peer, "closing")
    return {(item["sub"], item["session"]): (item["epoch"], item["seq"]) for item in closing["delivered"]}


def resumed(hub: Relay, session: str, position: Position) -> Peer:
    """A consumer that resumes there and is replayed everything."""
    peer = consumer(hub, from_=[ResumePoint(session, position)])
    drain(hub, peer)
    return peer


def one_that_is_paced(**limits: int) -> tuple[Relay, Peer]:
    """A connection that was sent a5 live and takes no more; what is held of ``s`` is left to a cursor from then on.

    Its other subscription replays, so that it is paced.
    """
    hub = relay(buffer_events=2, soft_limit_bytes=1, **limits)
    ingest(hub, event("t1", 1, session="t"))
    peer = consumer(hub)
    assert hub.subscribe(peer, "other", filters.parse({"session": "t"}), None, "all") is None
    ingest(hub, event("a5", 5))
    sink(peer).capacity_bytes = 0
    peer.push(text_frame(pong(1)))
    peer.push(text_frame(pong(2)))
    return hub, peer


def test_a_loss_that_is_yet_to_be_told_holds_the_position_down() -> None:
    hub, peer = one_that_is_paced()
    # The backfill is left to the cursor, and gone when that gets there.
    ingest(hub, event("a3", 3), event("a4", 4))
    hub.unsubscribe(peer, "other")
    sink(peer).capacity_bytes = peer.outbox.queued_bytes
    drain(hub, peer)
    assert frames_queued(peer, b"replay-exhausted") == 1
    hub.close(peer, "shutdown", 1001)
    assert told_at_the_end(hub, peer)[("sub", "s")] == (0, 2)
    assert not frames_of(peer, "replay-exhausted")
    assert frames_of(resumed(hub, "s", (0, 2)), "replay-exhausted")
    assert not frames_of(resumed(hub, "s", (0, 3)), "replay-exhausted"), "who is told this would lose a3"


def test_a_loss_that_was_told_holds_nothing_down() -> None:
    hub, peer = one_that_is_paced()
    ingest(hub, event("a3", 3), event("a4", 4))
    sink(peer).capacity_bytes = None
    drain(hub, peer)
    hub.close(peer, "shutdown", 1001)
    assert told_at_the_end(hub, peer)[("sub", "s")] == (0, 5)
    assert [frame["sub"] for frame in frames_of(peer, "replay-exhausted")] == ["sub"]
    assert [id_ for id_ in ids(peer) if id_ != "t1"] == ["a5", "a4", "a5"]


def test_what_tells_of_a_loss_is_no_delivered_event() -> None:
    hub, peer = one_that_is_paced()
    ingest(hub, event("a3", 3), event("a4", 4))
    delivered = peer.delivered_events
    ingest(hub, event("a3", 3))
    assert frames_queued(peer, b"replay-exhausted") == 1
    assert peer.delivered_events == delivered + 1
    assert hub.stats.exhausted_replays == 1


def test_nothing_is_passed_over_where_telling_of_a_loss_is_too_much() -> None:
    hub, peer = one_that_is_paced(hard_limit_bytes=40)
    ingest(hub, event("a3", 3), event("a4", 4))
    hub.subscribe(peer, "live", filters.parse({"agent": "coder"}), None)
    # What the cursor has yet to tell is told before what is sent again, and that comes to too much.
    ingest(hub, event("a3", 3))
    assert peer.closing == "slow-consumer"
    told = told_at_the_end(hub, peer)
    assert told[("sub", "s")] == (0, 2)
    assert ("live", "s") not in told
    assert frames_of(resumed(hub, "s", (0, 2)), "replay-exhausted")


def test_a_loss_at_the_very_position_that_was_delivered_is_told() -> None:
    hub, peer = one_that_is_paced()
    # Another source shares the name and the position. It is left to the cursor, and goes.
    ingest(hub, event("b5", 5, source="aep://host-b/agent/coder"), event("a6", 6), event("a7", 7))
    assert hub.store.lost("s") == Lost((0, 5), riders=False)
    hub.close(peer, "shutdown", 1001)
    told = told_at_the_end(hub, peer)[("sub", "s")]
    assert told == (0, 4)
    assert frames_of(resumed(hub, "s", told), "replay-exhausted")


def test_a_rider_before_every_position_holds_none_down() -> None:
    hub = relay(soft_limit_bytes=1)
    ingest(hub, event("s1", 1))
    peer = consumer(hub, from_=[ResumePoint("t", (0, 7)), ResumePoint("s", (0, 0))], capacity_bytes=0)
    peer.push(text_frame(pong(1)))
    sink(peer).capacity_bytes = peer.outbox.queued_bytes
    hub.drain_peer(peer)
    hub.drain_peer(peer)
    ingest(hub, event("r", session="t"))
    hub.close(peer, "shutdown", 1001)
    assert told_at_the_end(hub, peer)[("sub", "t")] == (0, 7)


def test_a_target_that_replays_is_told_of_what_its_command_would_hide() -> None:
    hub = relay(max_sessions=1)
    ingest(hub, event("s1", 1), event("s2", 2))
    target = consumer(hub, from_="all")
    target.role, target.accepts = "both", frozenset({"control.cancel"})
    hub.claim("s", target)
    ingest(hub, event("t1", 1, session="t"))
    sender = consumer(hub, filters.parse({"session": "none"}))
    sender.grants = FULL
    # It stands behind s2, and who resumes after that is told of no loss.
    assert hub.ingest(command("c"), sender) is None
    flush(hub)
    drain(hub, target)
    assert [frame["session"] for frame in frames_of(target, "replay-exhausted")] == ["s"]
    assert ids(target).count("c") == 1


def frames_queued(peer: Peer, text: bytes) -> int:
    """How many of the frames that wait for ``peer`` hold ``text``."""
    return sum(text in frame for batch, _ in peer.outbox.unsent() for frame in batch.frames)
