"""The index finds exactly the groups whose filter matches, and forgets what is gone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import hypothesis.strategies as st
from hypothesis import given, settings

from aep_relay.hub import subscriptions
from aep_relay.hub.subscriptions import Index
from aep_relay.protocol import filters
from tests.hub.build import event

if TYPE_CHECKING:
    import pytest

    from aep_relay.protocol.event import Event

TYPES = ["tool.completed", "tool.denied", "attention.requested", "x.acme.a.b", "x.acme.b.a", "error.raised"]
PATTERNS = [*TYPES, "tool.*", "attention.*", "x.acme.*", "x.*", "x.acme.a.*", "toolx.*"]


def one_or_many(values: list[Any]) -> st.SearchStrategy[Any]:
    """A predicate: one of ``values``, or an inclusion of some."""
    return st.one_of(st.sampled_from(values), st.lists(st.sampled_from(values), min_size=1, max_size=3))


filter_values = st.fixed_dictionaries(
    {},
    optional={
        "session": one_or_many(["s", "t", "", 1]),
        "agent": one_or_many(["coder", "writer"]),
        "type": one_or_many(PATTERNS),
        "source": one_or_many(["aep://host-a/agent/coder", "aep://host-b"]),
        "severity": st.sampled_from([{"gte": "notice"}, {"lte": "info"}, "error", ["debug", "critical"]]),
        "epoch": one_or_many([0, 1, True, "1"]),
        "region": one_or_many(["eu", 1, True, "1"]),
    },
)
events = st.builds(
    event,
    st.just("id"),
    st.integers(0, 3),
    session=st.sampled_from(["s", "t", "u"]),
    agent=st.sampled_from(["coder", "writer", "reader"]),
    type=st.sampled_from(TYPES),
    source=st.sampled_from(["aep://host-a/agent/coder", "aep://host-b"]),
    severity=st.sampled_from(["debug", "notice", "critical"]),
    epoch=st.sampled_from([None, 0, 1]),
    region=st.sampled_from([None, "eu", 1, True, "1"]),
)
wanted = st.lists(st.tuples(filter_values, st.sampled_from([None, 0, 1])), max_size=12)


def matching(index: Index, item: Event) -> list[subscriptions.GroupKey]:
    return sorted((group.key for group in index.matching(item)), key=str)


@settings(max_examples=300)
@given(wanted=wanted, item=events, gone=st.sets(st.integers(0, 11)))
def test_the_index_equals_a_scan(
    wanted: list[tuple[dict[str, Any], int | None]], item: Event, gone: set[int]
) -> None:
    index = Index()
    for value, ceiling in wanted:
        index.group(filters.parse(value), ceiling)
    _equals_a_scan(index, item)
    for number, group in enumerate(list(index.groups.values())):
        if number in gone:
            index.discard(group)
    _equals_a_scan(index, item)
    for group in list(index.groups.values()):
        index.discard(group)
    assert index.matching(item) == []
    assert index.weight == 0
    tables = (index._by_session, index._by_agent, index._by_type, index._by_prefix, index._scanned)
    assert not any(tables), "nothing is left of groups that are gone"


def _equals_a_scan(index: Index, item: Event) -> None:
    scanned = [group.key for group in index.groups.values() if group.filter.matches(item)]
    assert matching(index, item) == sorted(scanned, key=str)
    filters_ = [group.filter for group in index.groups.values()]
    assert index.weight == sum(filter_.weight for filter_ in filters_)
    assert index.cost(item) == sum(filter_.weight for filter_ in filters_ if _is_candidate(filter_, item))


def _is_candidate(filter_: filters.Filter, item: Event) -> bool:
    """Whether ``item`` has the most selective of the values that the filter asks for."""
    if filter_.sessions is not None:
        return item.session in filter_.sessions
    if filter_.agents is not None:
        return item.agent in filter_.agents
    return filter_.types is None or item.type in filter_.types or item.type.startswith(filter_.prefixes)


def test_equal_filters_in_other_spellings_are_one_group() -> None:
    index = Index()
    one = index.group(filters.parse({"agent": "a", "session": ["s", "t"]}), None)
    assert index.group(filters.parse({"session": ["t", "s", "s"], "agent": ["a"]}), None) is one
    assert index.group(filters.parse({"session": ["t", "s"], "agent": "a"}), 0) is not one


def test_a_group_that_several_places_lead_to_is_found_once() -> None:
    index = Index()
    index.group(filters.parse({"type": ["tool.*", "tool.completed", "x.acme.*", "x.*"]}), None)
    assert len(index.matching(event("a", 1, type="tool.completed"))) == 1
    assert len(index.matching(event("a", 1, type="x.acme.a.b"))) == 1


def test_an_event_without_a_session_is_matched_too() -> None:
    index = Index()
    index.group(filters.parse({"session": "s"}), None)
    scanned = index.group(filters.EMPTY, None)
    assert index.matching(event("a", session=None, type="agent.online")) == [scanned]


def test_filters_are_evaluated_for_candidates_only(monkeypatch: pytest.MonkeyPatch) -> None:
    index = Index()
    calls = 0

    def count(_: Event) -> bool:
        nonlocal calls
        calls += 1
        return True

    for number in range(50):
        filter_ = filters.parse({"session": f"s{number}", "source": "aep://host-b"})
        monkeypatch.setattr(type(filter_), "matcher_without", lambda *_: count)
        index.group(filter_, None)
    index.matching(event("a", 1, session="s7"))
    assert calls == 1


def test_the_cache_of_types_is_bounded_and_never_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "MAX_TYPE_CACHE", 4)
    index = Index()
    index.group(filters.parse({"type": "x.*"}), None)
    for number in range(20):
        assert len(index.matching(event("a", 1, type=f"x.acme.n{number}.a"))) == 1
        assert len(index._typed) <= 4
    index.group(filters.parse({"type": "x.acme.n19.a"}), None)
    assert len(index.matching(event("a", 1, type="x.acme.n19.a"))) == 2


def test_a_type_that_is_remembered_takes_no_more_for_many_groups() -> None:
    index = Index()
    for number in range(50):
        index.group(filters.parse({"type": "x.*", "run": f"r{number}"}), None)
        index.group(filters.parse({"type": ["x.acme.*", "tool.a"], "run": f"r{number}"}), None)
    for number in range(20):
        item = event("a", 1, type=f"x.acme.n{number}.a", run="r7")
        assert len(index.matching(item)) == 2
    slots = {id(each) for typed in index._typed.values() for each in typed}
    assert slots == {id(index._by_prefix["x."]), id(index._by_prefix["x.acme."])}
