"""What a token lets its holder emit, observe, command and see."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aep_relay.hub.peer import Peer
from aep_relay.hub.policy import ANONYMOUS, FULL, Grants, Patterns
from aep_relay.hub.relay import Relay
from aep_relay.protocol.errors import Refusal
from aep_relay.protocol.filters import EMPTY, parse
from aep_relay.protocol.framing import Framing
from aep_relay.protocol.position import ResumePoint
from aep_relay.protocol.registry import CAPTURE_RANK
from tests.fakes.sink import MemorySink, frames_of, ids, received
from tests.hub.build import command, consumer, event, ingest, relay


def attached(hub: Relay, holder: Grants | None = None) -> Peer:
    peer = hub.attach("test", Framing.WEBSOCKET, MemorySink())
    peer.grants = holder
    return peer


NAMES = st.text(alphabet="ab*.", max_size=8)


@given(pattern=NAMES, name=NAMES)
def test_a_star_stands_for_any_run_of_characters(pattern: str, name: str) -> None:
    expected = re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name, re.DOTALL) is not None
    assert Patterns((pattern,)).match(name) is expected


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("*", "", True),
        ("a*a", "a", False),
        ("a*a", "aa", True),
        ("ab*ba", "aba", False),
        ("a*b*c", "abc", True),
        ("a*b*c", "acb", False),
        ("a", "A", False),
        ("a.c", "abc", False),
        ("[a]", "a", False),
        ("*\n*", "a\nb", True),
    ],
)
def test_patterns(pattern: str, name: str, matches: bool) -> None:
    assert Patterns((pattern,)).match(name) is matches
    assert Patterns(("no", pattern)).match(name) is matches


def test_an_absent_name_matches_no_pattern() -> None:
    assert not Patterns(("*",)).match(None)
    assert not Patterns(()).match("a")


def test_a_long_name_takes_no_long_time() -> None:
    # With backtracking this would outlast the universe.
    assert not Patterns(("*a" * 50 + "b*",)).match("a" * 1000)


def grants(**members: object) -> Grants:
    narrowed = {
        name: Patterns(tuple(value)) if name in ("agents", "sessions", "commands") else value  # type: ignore[arg-type]
        for name, value in members.items()
    }
    return Grants(authenticated=True, **{"control": True, **narrowed})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("holder", "refused"),
    [
        (FULL, False),
        (ANONYMOUS, False),
        (grants(emit=False), True),
        (grants(agents=["cod*"]), False),
        (grants(agents=["other"]), True),
        (grants(sessions=["s"]), False),
        (grants(sessions=["t"]), True),
        (grants(agents=["cod*"], sessions=["t"]), True),
    ],
)
def test_what_may_be_emitted(holder: Grants, refused: bool) -> None:
    for candidate in (event("e", 1), event("e"), event("e", 1, type="control.accepted", cause="c")):
        refusal = holder.refuse_event(candidate)
        assert (refusal is not None) is refused
        if refusal is not None:
            assert refusal.code == "unauthorized"


def test_patterns_for_sessions_do_not_concern_events_without_one() -> None:
    agent_scoped = event("e", session=None, type="agent.started")
    assert grants(sessions=["t"]).refuse_event(agent_scoped) is None
    assert grants(sessions=["t"]).may_observe(agent_scoped)
    assert grants(agents=["t"]).refuse_event(agent_scoped) is not None
    assert not grants(agents=["t"]).may_observe(agent_scoped)


@pytest.mark.parametrize(
    ("holder", "allowed"),
    [
        (FULL, True),
        (ANONYMOUS, False),
        (Grants(authenticated=True), False),
        (Grants(authenticated=False, control=True), False),
        (grants(emit=False, consume=False), True),
        (grants(commands=["control.*"]), True),
        (grants(commands=["control.pause", "x.*"]), False),
        (grants(sessions=["s*"]), True),
        (grants(sessions=["t"]), False),
        (grants(agents=["coder"]), True),
        (grants(agents=["other"]), False),
    ],
)
def test_what_may_be_commanded(holder: Grants, allowed: bool) -> None:
    assert holder.may_command(command("c", "s", "control.cancel")) is allowed
    hub = relay()
    target = attached(hub)
    target.role, target.accepts = "emitter", frozenset({"control.cancel"})
    hub.ingest(event("e", 1), target)
    sender = attached(hub, holder)
    refusal = hub.ingest(command("c"), sender)
    if allowed:
        assert refusal is None
        assert ids(target) == ["c"]
    else:
        assert isinstance(refusal, Refusal)
        assert refusal.code == "unauthorized"
        assert ids(target) == []
        assert hub.stats.received_events == 1


def test_a_refused_command_tells_nothing_of_its_session() -> None:
    hub = relay()
    sender = attached(hub, grants(sessions=["mine"]))
    there = attached(hub)
    there.role = "emitter"
    hub.ingest(event("e", 1, session="theirs"), there)
    answers = {str(hub.ingest(command("c", name), sender)) for name in ("theirs", "nobody's")}
    assert len(answers) == 1


@pytest.mark.parametrize(
    ("holder", "seen"),
    [
        (FULL, ["a1", "a2", "b1", "b2", "agent"]),
        (grants(agents=["a"]), ["a1", "a2", "agent"]),
        (grants(sessions=["1"]), ["a1", "b1", "agent"]),
        (grants(agents=["a"], sessions=["1", "3"]), ["a1", "agent"]),
        (grants(agents=["c"]), []),
    ],
)
@pytest.mark.parametrize("replayed", [True, False])
def test_what_may_be_observed(holder: Grants, seen: list[str], replayed: bool) -> None:
    hub = relay()
    made = [
        event(f"{agent}{session}", number, session=session, agent=agent)
        for number, (agent, session) in enumerate([("a", "1"), ("a", "2"), ("b", "1"), ("b", "2")])
    ]
    if replayed:
        ingest(hub, *made)
    peer = attached(hub, holder)
    assert hub.subscribe(peer, "sub", EMPTY, None, "all" if replayed else None) is None
    while hub.drain_peer(peer):
        pass
    if not replayed:
        ingest(hub, *made)
    ingest(hub, event("agent", session=None, agent="a", type="agent.started"))
    assert sorted(ids(peer)) == sorted(seen)


def test_a_token_narrows_its_own_subscriptions_only() -> None:
    hub = relay()
    everybody, somebody = consumer(hub), attached(hub, grants(agents=["a"]))
    hub.subscribe(somebody, "sub", EMPTY, None, None)
    ingest(hub, event("1", 1, agent="a"), event("2", 2, agent="b"))
    assert ids(everybody) == ["1", "2"]
    assert ids(somebody) == ["1"]


def test_a_position_in_a_session_that_may_not_be_seen_is_passed_over() -> None:
    hub = relay(buffer_events=1)
    ingest(hub, *(event(f"{session}{seq}", seq, session=session) for session in "st" for seq in range(3)))
    peer = attached(hub, grants(sessions=["s"]))
    points = [ResumePoint("s", (0, 0)), ResumePoint("t", (0, 0)), ResumePoint("u", (0, 0))]
    assert hub.subscribe(peer, "sub", EMPTY, None, points) is None
    while hub.drain_peer(peer):
        pass
    assert ids(peer) == ["s2"]
    assert [frame["session"] for frame in frames_of(peer, "replay-exhausted")] == ["s"]
    hub.close(peer, "test", 1000)
    hub.drain_peer(peer)
    (closing,) = frames_of(peer, "closing")
    assert [position["session"] for position in closing["delivered"]] == ["s"]


LEVELS = [None, *CAPTURE_RANK.values()]


@pytest.mark.parametrize("own", LEVELS)
@pytest.mark.parametrize("asked", LEVELS)
def test_the_lower_ceiling_counts(own: int | None, asked: int | None) -> None:
    expected = min((level for level in (own, asked) if level is not None), default=None)
    assert grants(ceiling=own).bound(asked) == expected


def test_content_above_the_ceiling_of_a_token_goes_to_none_of_its_subscriptions() -> None:
    hub = relay()
    peer = attached(hub, grants(ceiling=CAPTURE_RANK["metadata"]))
    for id_, asked in (("a", None), ("b", CAPTURE_RANK["full"])):
        assert hub.subscribe(peer, id_, EMPTY, asked, None) is None
    ingest(hub, event("e", 1, type="x.acme.secret.told", capture="full", data={"text": "secret"}))
    (line,) = [json.loads(text) for text in received(peer)]
    assert line["capture"] == "metadata"
    assert "data" not in line


def test_who_may_not_consume_has_no_subscription() -> None:
    hub = relay()
    peer = attached(hub, grants(consume=False))
    refusal = hub.subscribe(peer, "sub", EMPTY, None, "all")
    assert refusal is not None
    assert refusal.code == "unauthorized"
    assert peer.subscriptions == {}


def test_the_roster_shows_whom_one_may_know() -> None:
    hub = relay()
    for agent, session in (("a", "1"), ("a", "2"), ("b", "1")):
        peer = attached(hub)
        peer.role, peer.agent, peer.identity = "emitter", agent, {"agent": agent}
        hub.ingest(event(f"{agent}{session}", 1, session=session, agent=agent), peer)

    def seen(holder: Grants | None) -> list[tuple[object, object]]:
        return sorted((entry["agent"], entry["session"]) for entry in hub.roster(holder))

    assert seen(None) == seen(FULL) == [("a", "1"), ("a", "2"), ("b", "1")]
    assert seen(grants(sessions=["1"])) == [("a", "1"), ("b", "1")]
    assert seen(grants(agents=["a"])) == [("a", "1"), ("a", "2")]
    assert seen(grants(agents=["b"], sessions=["2"])) == []


def test_as_whom_an_emitter_may_appear() -> None:
    assert FULL.may_appear_as("a")
    assert FULL.may_appear_as(None)
    assert grants(agents=["a*"]).may_appear_as("ab")
    assert not grants(agents=["a*"]).may_appear_as("b")
    assert not grants(agents=["a*"]).may_appear_as(None)


def test_equal_narrowing_of_equal_filters_is_one_group() -> None:
    mine, same, other = grants(agents=["a"]), grants(agents=["a"]), grants(agents=["b"])
    filter_ = parse({"type": "tool.*"})
    assert mine.narrow(filter_).key == same.narrow(filter_).key
    assert mine.narrow(filter_).key != other.narrow(filter_).key
    assert FULL.narrow(filter_) is filter_


def test_what_a_token_adds_to_a_filter_counts_as_well() -> None:
    hub = relay(max_predicates=10)
    peer = hub.attach("test", Framing.WEBSOCKET, MemorySink())
    peer.grants = Grants(authenticated=True, agents=Patterns(("a*",)))

    def subscribe(id_: str, predicates: int) -> bool:
        chosen = parse({f"region{number}": 1 for number in range(predicates)})
        return hub.subscribe(peer, id_, chosen, None) is None

    assert subscribe("one", 11)
    assert not subscribe("one", 12), (
        "in place of one with a predicate less, which is as much as the token adds"
    )
    assert subscribe("one", 9)
    assert subscribe("two", 1)
    assert not subscribe("three", 0)
    assert hub.membership.predicates == 10


def test_every_pattern_of_a_token_counts() -> None:
    hub = relay(max_predicates=10)
    peer = attached(hub, Grants(authenticated=True, agents=Patterns(("a*", "b*")), sessions=Patterns(("s",))))
    assert hub.subscribe(peer, "one", EMPTY, None) is None
    assert peer.predicates == 1 + 3


@pytest.mark.parametrize(
    ("pattern", "matches"), [("*aab*", False), ("a*b*", False), ("a*", True), ("*a", True), ("*", True)]
)
def test_a_very_long_name_is_not_searched(pattern: str, matches: bool) -> None:
    assert Patterns((pattern,)).match("a" * 1000 + "ba")
    assert Patterns((pattern,)).match("a" * 2_000_000 + "ba") is matches
