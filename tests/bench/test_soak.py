"""The soak's own arithmetic: what counts as lost, as grown, as left. The soak itself is run by hand."""

from __future__ import annotations

import json
from collections.abc import Iterable

import pytest

from aep_relay.protocol import frames, sse
from aep_relay.protocol.event import decode
from aep_relay.protocol.framing import Framing, encode
from aep_relay.protocol.registry import SEVERITY_RANK

from .soak import ledger as books
from .soak import run, verdict
from .soak.ledger import Farewell, Ledger, Session, Tally
from .soak.verdict import Sample

Told = list[int | tuple[str, int]]


def spelled(told: Told, framing: Framing, session: str = "soak1") -> bytes:
    """What a consumer receives: Events by position, and where a ``replay-exhausted`` says that the history begins."""
    parts = []
    for item in told:
        if isinstance(item, int):
            event = decode(books.event(session, item, "x" * 300))
            parts.append(encode(framing, event, event.raw))
        elif framing is Framing.WEBSOCKET:
            parts.append(frames.text_frame(frames.replay_exhausted("a", session, (0, item[1]))))
        else:
            parts.append(sse.chunk(sse.replay_exhausted(session, (0, item[1]))))
    return b"".join(parts)


CASES: list[tuple[Told, int, int, int, int]] = [
    ([1, 2, 3, 4, 5], 3, 0, 0, 0),
    ([1, 3, 5], 3, 0, 0, 0),
    ([3], 1, 0, 0, 1),
    ([1, 5, 9], 3, 0, 0, 1),
    ([1, 3, 1, 3, 5], 3, 2, 0, 0),
    ([1, ("gone before", 7), 7, 9], 3, 0, 2, 0),
    ([("gone before", 6), 6, 7], 1, 0, 3, 0),
    ([("gone before", 1), 1, 3], 2, 0, 0, 0),
    ([1, 3, ("gone before", 3), 5], 3, 0, 0, 0),
    ([1, ("gone before", 7), 11], 2, 0, 2, 1),
    # What was evicted and is sent again comes before what tells of the eviction.
    ([1, 9, ("gone before", 12), 13], 3, 0, 5, 0),
    ([1, 9, 11, ("gone before", 10), 13], 4, 0, 4, 0),
    ([1, 9, ("gone before", 7), 11], 3, 0, 0, 1),
    # A live Event that overtook what is replayed.
    ([9, 1, 3, 5, 7, 9, 11], 2, 5, 0, 1),
]


@pytest.mark.parametrize("piece_bytes", [1, 7, 100, 10_000])
@pytest.mark.parametrize("framing", [Framing.WEBSOCKET, Framing.SSE])
@pytest.mark.parametrize(("told", "received", "repeated", "excused", "lost"), CASES)
def test_what_is_lost(
    told: Told, received: int, repeated: int, excused: int, lost: int, framing: Framing, piece_bytes: int
) -> None:
    tally = Tally()
    ledger = Ledger("me", {"soak1": Session("soak1")}, tally)
    for piece in pieces(spelled(told, framing), piece_bytes):
        ledger.take(piece)
    ledger.close()
    assert (tally.received, tally.repeated, tally.excused, len(tally.lost)) == (
        received,
        repeated,
        excused,
        lost,
    )


def pieces(data: bytes, size: int) -> Iterable[bytes]:
    return (data[at : at + size] for at in range(0, len(data), size))


@pytest.mark.parametrize(("begins", "told"), [(0, 1), (1, 3), (2, 3), (3, 5), (4, 5)])
def test_where_books_begin(begins: int, told: int) -> None:
    tally = Tally()
    ledger = Ledger("me", {"soak1": Session("soak1")}, tally, {"soak1": begins})
    ledger.take(spelled([told], Framing.SSE))
    ledger.close()
    assert (ledger.positions, tally.received, tally.lost) == ({"soak1": told}, 1, [])


def test_what_a_consumer_resumes_from_and_what_it_still_misses() -> None:
    sessions = {"soak1": Session("soak1", 8, 8), "soak2": Session("soak2", 4, 2)}
    ledger = Ledger("me", sessions, Tally())
    assert ledger.missing(books.goals(sessions)) == ["soak1", "soak2"]
    ledger.take(spelled([1, 2, 3, 4], Framing.SSE) + spelled([1], Framing.SSE, "soak2"))
    ledger.take(spelled([99], Framing.SSE, "soak3"))
    assert ledger.positions == {"soak1": 3, "soak2": 1}
    assert ledger.last_id == b"soak3:0:99", "the last whole message of the stream, whatever it is"
    assert ledger.missing(books.goals(sessions)) == ["soak1"]
    ledger.take(spelled([5, 6, 7], Framing.SSE))
    assert ledger.missing(books.goals(sessions)) == []


@pytest.mark.parametrize("framing", [Framing.WEBSOCKET, Framing.SSE])
def test_an_event_that_was_cut_off_is_none(framing: Framing) -> None:
    tally = Tally()
    ledger = Ledger("me", {"soak1": Session("soak1")}, tally)
    whole = spelled([1], framing)
    ledger.take(whole + whole[:-10])
    ledger.begin()
    ledger.take(spelled([2, 3], framing))
    assert (tally.received, tally.repeated, tally.lost) == (2, 0, [])
    assert framing is Framing.WEBSOCKET or ledger.last_id == b"soak1:0:3"


def test_the_odd_events_are_the_essential_ones() -> None:
    events = [decode(books.event("soak1", seq, "", cause="c-1" if seq == 3 else "")) for seq in range(1, 9)]
    assert [event.severity >= SEVERITY_RANK["notice"] for event in events] == [True, False] * 4
    assert [event.position for event in events] == [(0, seq) for seq in range(1, 9)]
    assert [event.id for event in events[:2]] == ["soak1-1", "soak1-2"]


@pytest.mark.parametrize("piece_bytes", [1, 16, 10_000])
def test_a_farewell_is_found(piece_bytes: int) -> None:
    delivered = [
        {"sub": "a", "session": "soak1", "epoch": 0, "seq": 5},
        {"sub": "b", "session": "soak2", "epoch": 0, "seq": 6},
    ]
    before, frame = (
        spelled([1, 2], Framing.WEBSOCKET),
        frames.text_frame(frames.closing("shutdown", delivered)),
    )
    farewell = Farewell()
    for piece in pieces(before + frame[:-1], piece_bytes):
        farewell.feed(piece)
        assert farewell.delivered() is None
    farewell.feed(frame[-1:] + b"\x88\x02\x03\xe9")
    assert farewell.delivered() == {("a", "soak1"): 5, ("b", "soak2"): 6}


def sample(seconds: float, **held: int) -> Sample:
    usual = {"rss_bytes": 100 << 20, "descriptors": 150, "tasks": 160, "connections": 140}
    return Sample(seconds=seconds, share=0.6, late_seconds=0.01, **{**usual, **held})


def test_growth_is_told_from_the_first_minutes_and_from_noise() -> None:
    def samples(late: dict[str, int]) -> list[Sample]:
        early = [sample(second, rss_bytes=second << 20, tasks=second) for second in range(25)]
        return early + [sample(second, **(late if second > 70 else {})) for second in range(25, 101)]

    assert verdict.grown(samples({})) == []
    assert verdict.grown(samples({"rss_bytes": 110 << 20, "tasks": 200})) == []
    for name, value in (("rss_bytes", 130 << 20), ("tasks", 230), ("descriptors", 230)):
        (found,) = verdict.grown(samples({name: value}))
        assert found.startswith(f"{name} grew")


def test_what_is_left() -> None:
    before = sample(0, tasks=20, descriptors=10, connections=0)
    assert verdict.left(before, sample(900, tasks=22, descriptors=12, connections=1)) == []
    found = verdict.left(before, sample(900, tasks=25, descriptors=15, connections=5))
    assert [text.partition(":")[0] for text in found] == ["tasks", "descriptors", "connections"]


def test_what_a_log_says_that_must_not_be() -> None:
    taken, error = (
        json.dumps({"event": "configuration reloaded"}),
        json.dumps({"level": "error", "event": "x"}),
    )
    assert run.troubles("\n".join([taken] * 9), 10) == []
    assert run.troubles("\n".join([taken] * 8), 10) == ["8 of 10 configurations were taken over"]
    assert run.troubles(f"{taken}\n{error}\nTraceback (most recent call last):", 1) == [
        error,
        "Traceback (most recent call last):",
    ]
