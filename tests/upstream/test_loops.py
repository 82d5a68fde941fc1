"""Circles of relays: refused, in every start order, with few copies of what is posted into them; diamonds are none."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations

import pytest
import trio
from trio.testing import MockClock

from aep_relay.config import Upstream
from tests.bindings.served import BEARER, settle
from tests.fakes.log import Log
from tests.upstream.net import Net, Node, event, events, ids, net, to, until
from tests.upstream.scripted import Scripted, hello

MANY = 12
"""More copies of one Event than this are no handful."""


def loops(node: Node) -> list[str]:
    return [str(found["path"]) for found in node.relay.feeders.describe()]


def received(nodes: list[Node]) -> int:
    return sum(node.relay.stats.received_events for node in nodes)


def refused_links(nodes: list[Node]) -> list[str]:
    return [str(link["name"]) for node in nodes for link in node.chain.describe() if link["state"] == "loop"]


def states(nodes: list[Node]) -> list[object]:
    return [link["state"] for node in nodes for link in node.chain.describe()]


async def check_broken(nodes: list[Node]) -> None:
    """See that the circle is broken, and that an Event posted into it does not go round."""
    await until(lambda: all(state in ("up", "loop") for state in states(nodes)), 120)
    assert "loop" in states(nodes)
    before = received(nodes)
    for number, node in enumerate(nodes):
        await node.take(event(f"once{number}", 0, f"once{number}"))
    await trio.sleep(20)
    assert received(nodes) - before <= len(nodes) * MANY
    settled = received(nodes)
    await trio.sleep(200)
    assert received(nodes) == settled


@pytest.mark.parametrize("mode", ["push", "pull", "both"])
@pytest.mark.parametrize("alias", ["me", "myself"])
async def test_a_relay_that_is_its_own_upstream(
    mode: str, alias: str, autojump_clock: MockClock, log: Log
) -> None:
    async with net() as net_:
        me = Node(net_, "me", to(alias, mode))
        net_.hosts["myself"] = net_.hosts["me"]
        await trio.sleep(2)
        (path,) = loops(me)
        assert path == "me1 -> me1"
        for link in me.chain.describe():
            assert (link["state"], link["path"]) == ("loop", path)
        assert {record["path"] for record in log.records("upstream down")} == {path}
        await me.take(*events(1))
        await trio.sleep(300)
        assert me.relay.stats.received_events == 1
        assert me.relay.stats.redelivered_events == 0
        # It tries again, and not often.
        assert 3 <= len(net_.dialled[alias]) <= 20


@pytest.mark.parametrize(
    "modes", [("push", "push"), ("pull", "pull"), ("both", "push"), ("both", "pull"), ("both", "both")]
)
@pytest.mark.parametrize("delay_seconds", [0.0, 3.0])
async def test_two_relays_that_feed_each_other(
    modes: tuple[str, str], delay_seconds: float, autojump_clock: MockClock
) -> None:
    async with net() as net_:
        nodes = []
        for name, other, mode in (("a", "b", modes[0]), ("b", "a", modes[1])):
            nodes.append(Node(net_, name, to(other, mode)))
            await trio.sleep(delay_seconds)
        if not delay_seconds:
            await trio.sleep(2)
            assert "loop" in states(nodes)
        await check_broken(nodes)


def circle_of(mode: Callable[[int], str]) -> dict[str, Upstream]:
    """``a`` feeds ``b``, ``b`` feeds ``c``, ``c`` feeds ``a``: who has which link."""
    found: dict[str, Upstream] = {}
    for number, (feeder, fed) in enumerate((("a", "b"), ("b", "c"), ("c", "a"))):
        if mode(number) == "push":
            found[f"{feeder}:{fed}"] = to(fed, "push", label=f"to-{fed}")
        else:
            found[f"{fed}:{feeder}"] = to(feeder, "pull", label=f"from-{feeder}")
    return found


def build(net_: Net, names: str, links: dict[str, Upstream]) -> dict[str, Node]:
    return {
        name: Node(net_, name, *(link for owner, link in links.items() if owner.startswith(f"{name}:")))
        for name in names
    }


@pytest.mark.parametrize("order", ["".join(order) for order in permutations("abc")])
@pytest.mark.parametrize("delay_seconds", [0.0, 0.001, 2.0])
@pytest.mark.parametrize("modes", ["push", "pull", "mixed"])
async def test_a_circle_of_three(
    order: str, delay_seconds: float, modes: str, autojump_clock: MockClock
) -> None:
    def mode(number: int) -> str:
        return ("push", "pull", "push")[number] if modes == "mixed" else modes

    async with net() as net_:
        links = circle_of(mode)
        nodes: list[Node] = []
        for name in order:
            nodes += build(net_, name, links).values()
            await trio.sleep(delay_seconds)
        if not delay_seconds:
            await trio.sleep(2)
            assert "loop" in states(nodes)
        await check_broken(nodes)
        assert len(refused_links(nodes)) == 1
        (path,) = {path for node in nodes for path in loops(node)}
        assert path == " -> ".join(f"{name}1" for name in "abca")


async def test_an_event_that_is_on_its_way_when_the_circle_closes(autojump_clock: MockClock) -> None:
    async with net() as net_:
        links = circle_of(lambda number: "push")
        nodes = list(build(net_, "abc", links).values())
        for node in nodes:
            await node.take(event(f"early-{node.name}", 0, node.name))
        await check_broken(nodes)
        assert received(nodes) <= 6 * MANY


async def test_a_circle_is_mended_by_taking_a_link_away(autojump_clock: MockClock) -> None:
    async with net() as net_:
        links = circle_of(lambda number: "push")
        nodes = build(net_, "abc", links)
        await check_broken(list(nodes.values()))
        (refused,) = [node for node in nodes.values() if node.link.state == "loop"]
        other = next(node for node in nodes.values() if node is not refused)
        other.link.stop()
        await until(lambda: refused.link.state == "up", 120)


async def test_two_ways_are_allowed_and_bound_the_copies(autojump_clock: MockClock) -> None:
    async with net() as net_:
        links = {
            "leaf:1": to("left", label="left"),
            "leaf:2": to("right", label="right"),
            "left:1": to("top"),
            "top:1": to("right", "pull"),
        }
        nodes = {
            name: Node(net_, name, *(u for owner, u in links.items() if owner.startswith(f"{name}:")))
            for name in ("leaf", "left", "right", "top")
        }
        await until(
            lambda: all(link["state"] == "up" for node in nodes.values() for link in node.chain.describe())
        )
        watching = await nodes["top"].greeted("consumer", headers=BEARER)
        watching.say({"type": "subscribe", "id": "w"})
        await settle()
        agent = await nodes["leaf"].greeted("emitter", headers=BEARER)
        agent.say(*events(1, 2))
        await nodes["leaf"].take(*events(1, 2, session="p"))
        await until(
            lambda: nodes["top"].held() == ids(1, 2) and nodes["top"].held("p") == ids(1, 2, session="p")
        )
        await trio.sleep(5)
        got = [frame["id"] for frame in watching.heard() if "." in frame["type"]]
        assert set(got) == {*ids(1, 2), *ids(1, 2, session="p")}
        assert len(got) <= 8
        assert all(loops(node) == [] for node in nodes.values())


async def test_connections_name_the_path(autojump_clock: MockClock) -> None:
    async with net() as net_:
        a, b = Node(net_, "a", to("b")), Node(net_, "b", to("a"))
        await trio.sleep(2)
        listed = [(await node.ask("GET", "/connections", None, BEARER)).json for node in (a, b)]
        paths = {found["path"] for document in listed for found in document["loops"]}
        assert paths == {"a1 -> b1 -> a1"}
        (refused,) = [link for document in listed for link in document["links"] if link["state"] == "loop"]
        assert refused["path"] == "a1 -> b1 -> a1"


async def test_an_announcement_that_is_too_long_for_a_hello(autojump_clock: MockClock) -> None:
    async with net() as net_:
        hub = Node(net_, "hub", to("top"))
        leaves = [Node(net_, f"leaf-with-a-long-name-{n:04}", to("hub")) for n in range(120)]
        await until(lambda: all(leaf.link.state == "up" for leaf in leaves))
        top = Node(net_, "top")
        await until(lambda: hub.link.state == "up" and len(top.relay.feeders.graph()) == 122, 120)
        closing = Node(net_, "closing", to("leaf-with-a-long-name-0007"), to("top", "pull"))
        await trio.sleep(3)
        assert len(refused_links([closing, *leaves])) == 1


def tasks() -> int:
    return trio.lowlevel.current_statistics().tasks_living


async def test_a_peer_that_keeps_changing_its_circle_is_looked_at_once(autojump_clock: MockClock) -> None:
    async with net() as net_:
        hub = Node(net_, "hub")
        said: dict[str, object] = {"relay": "0", "link": "y", "fed_by": {}}
        leaf = await hub.greeted("emitter", "leaf", {"experimental": {"aep-relay": said}}, headers=BEARER)
        await settle()
        before = tasks()
        # Of the two relays in the circle this one does not go first: it waits a moment.
        for number in range(100):
            leaf.say({"type": "aep-relay", "relay": "0", "fed_by": {"0": ["hub1"], f"n{number}": []}})
        await settle()
        assert tasks() <= before + 1
        assert leaf.closed is None
        await until(lambda: leaf.closed == 1008)


async def test_an_upstream_that_keeps_changing_its_circle_is_looked_at_once(
    autojump_clock: MockClock,
) -> None:
    async with net() as net_:
        upstream = Scripted(on_socket=lambda: None)
        net_.hosts["hub"] = upstream.serve
        edge = Node(net_, "edge", to("hub", "pull"))
        await until(lambda: bool(upstream.sockets))
        spoken = upstream.sockets[0]
        spoken.say(hello(experimental={"aep-relay": {"relay": "0", "fed_by": {}}}))
        spoken.say({"type": "subscribed", "id": "pull"})
        await until(lambda: edge.link.state == "up")
        await settle()
        before = tasks()
        for number in range(100):
            spoken.say({"type": "aep-relay", "relay": "0", "fed_by": {"0": ["edge1"], f"n{number}": []}})
            spoken.say({"type": "subscribed", "id": "pull"})
        await settle()
        assert tasks() <= before + 1
        assert edge.link.state == "up"
        await until(lambda: edge.link.state == "loop")
