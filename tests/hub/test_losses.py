"""What a chained relay needs of the buffers: what is held, what goes, and a loss that another relay tells of."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aep_relay.hub.buffer import Lost
from aep_relay.hub.limits import Limits
from aep_relay.hub.positions import before
from aep_relay.hub.replay import plan
from aep_relay.hub.store import Store
from aep_relay.protocol import filters
from aep_relay.protocol.position import MAX_POSITION, ResumePoint
from tests.hub.build import consumer, event, exhausted, ingest, relay, sink


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
