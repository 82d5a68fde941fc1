"""Who feeds whom: circles are found whatever the order, and what others tell is bounded."""

from __future__ import annotations

from collections import deque
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aep_relay.hub.feeders import MAX_LOOPS, MAX_RELAYS, Announcement, Feeders, parse, text


class Net:
    """Relays that tell each other, message by message, in an order of the test's choosing."""

    def __init__(self, names: str) -> None:
        self.relays = {name: Feeders(name) for name in names}
        self.links: dict[tuple[str, str], str] = {}
        self.mail: deque[tuple[str, str, object]] = deque()
        for name, feeders in self.relays.items():
            feeders.watchers.append(lambda name=name: self._announce(name))  # type: ignore[misc]

    def _announce(self, name: str) -> None:
        for (feeder, fed), link in self.links.items():
            if feeder == name:
                self.mail.append((feeder, fed, self.relays[name].announcement(link, named=True)))

    def connect(self, feeder: str, fed: str, link: str | None = None) -> None:
        link = self.links[feeder, fed] = link or f"{feeder}/{fed}"
        self.mail.append((feeder, fed, self.relays[feeder].announcement(link, named=True)))

    def cut(self, feeder: str, fed: str) -> None:
        del self.links[feeder, fed]
        self.mail = deque(item for item in self.mail if item[:2] != (feeder, fed))
        self.relays[fed].forget((feeder, fed))

    def deliver(self) -> list[tuple[str, ...]]:
        """Deliver all; return the circles that were found, the link that closed each of them cut."""
        found = []
        while self.mail:
            feeder, fed, value = self.mail.popleft()
            announcement = parse(value)
            assert announcement is not None
            circle = self.relays[fed].circle(announcement)
            if circle is None:
                self.relays[fed].learn((feeder, fed), announcement)
            else:
                found.append(circle)
                self.cut(feeder, fed)
        return found


def test_a_relay_that_is_fed_by_itself() -> None:
    net = Net("a")
    net.connect("a", "a")
    assert net.deliver() == [("a",)]
    assert net.relays["a"].circle_through("a", None) == ("a",)


def test_two_relays_that_feed_each_other() -> None:
    net = Net("ab")
    net.connect("a", "b")
    assert net.deliver() == []
    assert net.relays["b"].circle_through("a", "b/a") == ("a", "b")
    net.connect("b", "a")
    assert net.deliver() == [("a", "b")]
    assert net.relays["a"].graph() == {"a": []}


def test_a_circle_of_three_is_found_where_it_is_closed() -> None:
    for last in range(3):
        net = Net("abc")
        pairs = [("a", "b"), ("b", "c"), ("c", "a")]
        closing = pairs.pop(last)
        for pair in pairs:
            net.connect(*pair)
            assert net.deliver() == []
        net.connect(*closing)
        (circle,) = net.deliver()
        assert set(circle) == set("abc")
        assert circle[0] == closing[1]
        assert circle[-1] == closing[0]


def test_a_circle_that_is_closed_at_once_everywhere() -> None:
    net = Net("abc")
    for pair in ("ab", "bc", "ca"):
        net.connect(*pair)
    assert net.deliver()
    assert len(net.links) < 3


def test_two_ways_are_no_circle() -> None:
    net = Net("abcd")
    for pair in ("ab", "ac", "bd", "cd"):
        net.connect(*pair)
    assert net.deliver() == []
    assert set(net.relays["d"].graph()) == set("abcd")


def test_a_link_in_both_directions_is_no_circle_by_itself() -> None:
    net = Net("abc")
    net.connect("a", "b", "a/hub")
    net.connect("b", "a", "a/hub")
    net.connect("c", "b", "c/hub")
    net.connect("b", "c", "c/hub")
    assert net.deliver() == []
    assert set(net.relays["a"].graph()) == set("abc")
    net.connect("a", "c")
    assert net.deliver() != []


def test_what_is_over_is_forgotten() -> None:
    net = Net("abc")
    net.connect("a", "b")
    net.connect("b", "c")
    net.deliver()
    assert set(net.relays["c"].graph()) == set("abc")
    net.cut("a", "b")
    net.deliver()
    assert set(net.relays["c"].graph()) == set("bc")
    net.connect("c", "a")
    assert net.deliver() == []


@given(st.data())
def test_no_circle_is_left_and_what_is_none_stays(data: st.DataObject) -> None:
    names = "abcdef"
    net = Net(names)
    pairs = data.draw(
        st.lists(st.tuples(st.sampled_from(names), st.sampled_from(names)), max_size=14, unique=True)
    )
    found = []
    for pair in pairs:
        net.connect(*pair)
        if data.draw(st.booleans()):
            found += net.deliver()
    found += net.deliver()
    reach = {name: {name} for name in names}
    for _ in names:
        for feeder, fed in net.links:
            reach[fed] |= reach[feeder]
    assert not any(fed in reach[feeder] for feeder, fed in net.links)
    for circle in found:
        steps = [*pairwise(circle), (circle[-1], circle[0])]
        assert set(steps) <= set(pairs)


def test_a_circle_is_remembered_once_and_counted() -> None:
    feeders = Feeders("b")
    assert feeders.found(("b", "c", "a")) == "a -> b -> c -> a"
    assert feeders.found(("c", "a", "b")) == text(("a", "b", "c"))
    assert feeders.loops == {("a", "b", "c"): 2}
    for number in range(2 * MAX_LOOPS):
        feeders.found((f"x{number}",))
    assert len(feeders.loops) == MAX_LOOPS


def test_who_watches_is_told_of_changes_only() -> None:
    feeders, told = Feeders("a"), []
    feeders.watchers.append(lambda: told.append(1))
    announcement = Announcement("b", None, {"b": []})
    feeders.forget("x")
    feeders.learn("x", announcement)
    feeders.learn("x", announcement)
    assert len(told) == 1
    feeders.forget("x")
    assert len(told) == 2


def test_an_announcement_is_read_as_it_was_written() -> None:
    feeders = Feeders("a")
    feeders.learn("x", Announcement("b", "b/hub", {"b": ["c"], "c": []}))
    assert parse(feeders.announcement("a/hub", named=True)) == Announcement(
        "a", "a/hub", {"a": ["b"], "b": ["c"], "c": []}
    )
    assert parse(feeders.announcement("b/hub")) == Announcement("a", None, {"a": []})
    assert parse({"relay": "a", "more": 1}) == Announcement("a", None, None)


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {},
        {"relay": 1},
        {"relay": ""},
        {"relay": "a\nb"},
        {"relay": "a" * 200},
        {"relay": "a", "link": 1},
        {"relay": "a", "link": "a b"},
        {"relay": "a", "fed_by": []},
        {"relay": "a", "fed_by": {"a": "b"}},
        {"relay": "a", "fed_by": {"a": [1]}},
        {"relay": "a", "fed_by": {"a": [None]}},
        {"relay": "a", "fed_by": {"a b": []}},
        {"relay": "a", "fed_by": {"a": ["b"] * (2 * MAX_RELAYS)}},
    ],
)
def test_what_is_malformed_announces_nothing(value: object) -> None:
    assert parse(value) is None


@pytest.mark.parametrize("shape", ["relays", "pairs", "leaves", "the same"])
def test_a_huge_net_is_cut_to_what_others_take(shape: str) -> None:
    feeders = Feeders("a")
    for number in range(9000 if shape == "leaves" else 12):
        graph: dict[str, list[str]] = {}
        if shape == "relays":
            graph = {f"r{number}-{i}": [] for i in range(MAX_RELAYS)}
        elif shape == "pairs":
            graph = {f"r{number}": [f"r{number}-{i}" for i in range(MAX_RELAYS)]}
        elif shape == "the same":
            graph = {"r": [f"r{i}" for i in range(2 * MAX_RELAYS - 100)]}
        feeders.learn(number, Announcement(f"r{number}-0", None, graph))
    assert parse(feeders.announcement(None)) is not None
    assert sum(1 + len(ids) for ids in feeders.graph().values()) > MAX_RELAYS


def test_a_graph_is_merged_once_until_something_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    feeders = Feeders("a")
    merged: list[str | None] = []
    merge = Feeders._merged

    def noted(self: Feeders, link: str | None) -> dict[str, list[str]]:
        merged.append(link)
        return merge(self, link)

    monkeypatch.setattr(Feeders, "_merged", noted)
    feeders.learn(1, Announcement("b", "up", {"b": ["c"]}))
    for _ in range(3):
        assert feeders.circle_through("c", None) is not None
        assert feeders.announcement("up")["fed_by"] == {"a": []}
    assert merged == [None, "up"]
    feeders.learn(1, Announcement("b", "up", {"b": []}))
    assert feeders.circle_through("c", None) is None
    feeders.forget(1)
    assert feeders.graph() == {"a": []}
    assert merged == [None, "up", None, None]
