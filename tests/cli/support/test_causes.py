"""What caused what, as a forest."""

from __future__ import annotations

from aep_relay.cli.support.causes import nodes
from aep_relay.protocol.event import Event, decode
from tests.protocol.samples import MINIMAL, text


def made(id_: str, cause: str | None = None, source: str = "aep://a") -> Event:
    members = {} if cause is None else {"cause": cause}
    return decode(text({**MINIMAL, **members, "id": id_, "source": source}))


def drawn(*events: Event) -> list[str]:
    return [f"{node.branch}{node.event.id}" for node in nodes(events)]


def test_an_event_stands_under_its_cause() -> None:
    events = [made("a"), made("b", "a"), made("c", "b"), made("d", "a"), made("e"), made("f", "gone")]
    assert drawn(*events) == ["a", "├─ b", "│  └─ c", "└─ d", "e", "f"]


def test_an_effect_may_come_before_its_cause() -> None:
    assert drawn(made("b", "a"), made("a")) == ["a", "└─ b"]


def test_a_circle_is_shown_once() -> None:
    assert drawn(made("a", "b"), made("b", "a"), made("self", "self")) == ["self", "a", "└─ b"]


def test_of_two_with_one_id_the_own_sources_is_meant() -> None:
    events = [made("a"), made("a", source="aep://b"), made("x", "a", "aep://b"), made("y", "a", "aep://c")]
    assert [(node.event.id, node.parent and node.parent.source) for node in nodes(events)] == [
        ("a", None), ("y", "aep://a"), ("a", None), ("x", "aep://b"),
    ]  # fmt: skip


def test_a_chain_of_ten_thousand_needs_no_deep_stack() -> None:
    events = [made("0"), *(made(str(n), str(n - 1)) for n in range(1, 10_000))]
    found = list(nodes(events))
    assert [node.depth for node in found] == list(range(10_000))
    assert max(len(node.branch) for node in found) < 400
