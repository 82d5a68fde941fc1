"""Links that are added, taken away and changed while the relay runs: what is owed stays owed, others do not notice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from aep_relay.config import Config, ConfigError, Upstream
from aep_relay.hub.limits import Limits
from aep_relay.upstream.push import PushLink
from tests.bindings.served import BEARER, TOKEN
from tests.upstream.net import Net, Node, event, events, ids, net, to, until


def reload(node: Node, *upstreams: Upstream) -> None:
    node.chain.prepare(replace(node.config, upstreams=upstreams))()


def push(leaf: Node) -> PushLink:
    (link,) = leaf.chain.pushes
    return link


def state(node: Node) -> dict[str, Any]:
    return {str(link["name"]): link["state"] for link in node.chain.describe()}


async def build(net_: Net, *upstreams: Upstream, hubs: str = "hub other") -> list[Node]:
    found = [Node(net_, name) for name in hubs.split()]
    leaf = Node(net_, "leaf", *upstreams, limits=Limits(buffer_events=50, ping_timeout_seconds=1e9))
    await until(lambda: all(link.state == "up" for link in leaf.chain.links))
    return [leaf, *found]


async def test_a_link_is_added_and_taken_away(autojump_clock: MockClock) -> None:
    async with net() as net_:
        leaf, hub, other = await build(net_)
        assert leaf.chain.links == []
        await leaf.take(*events(1))
        reload(leaf, to("hub"))
        # What was held before it came goes up as well.
        await until(lambda: hub.held() == ids(1))
        agent = await leaf.greeted("emitter", "coder", headers=BEARER)
        agent.say(event("w1", 1, "w"))
        await until(lambda: [entry["session"] for entry in hub.relay.roster()] == ["w"])
        reload(leaf, to("other"))
        await until(lambda: other.held() == ids(1) and other.held("w") == ids(1, session="w"))
        # The emitter is here still, and its mirror has left there.
        await until(lambda: hub.relay.roster() == [])
        agent.say(event("w2", 2, "w"))
        await until(lambda: [entry["session"] for entry in other.relay.roster()] == ["w"])
        reload(leaf)
        await until(lambda: other.relay.peers == {} and leaf.chain.describe() == [])
        await leaf.take(*events(2))
        await trio.sleep(60)
        assert (hub.held(), other.held()) == (ids(1), ids(1))
        assert [*leaf.relay.taps, *leaf.relay.departures, *leaf.relay.uplinks] == []
        assert leaf.relay.store.watchers == []


async def test_what_is_on_its_way_arrives_before_a_link_goes(autojump_clock: MockClock) -> None:
    async with net() as net_:
        leaf, hub, _ = await build(net_, to("hub"))
        await leaf.take(*events(*range(40)))
        agent = await leaf.greeted("emitter", "coder", headers=BEARER)
        agent.say(*events(*range(40), session="w"))
        reload(leaf)
        await until(lambda: len(hub.held()) == 40)
        await until(lambda: hub.relay.peers == {})
        assert hub.held() == ids(*range(40))


async def test_unchanged_links_do_not_notice(autojump_clock: MockClock) -> None:
    async with net() as net_:
        leaf, hub, other = await build(net_, to("hub"), to("other", "both"))
        before = leaf.chain.links
        reload(leaf, to("other", "both"), to("hub"))
        await trio.sleep(120)
        assert {id(link) for link in leaf.chain.links} == {id(link) for link in before}
        assert [link.times_up for link in before] == [1, 1, 1]
        await leaf.take(*events(1))
        await until(lambda: hub.held() == other.held() == ids(1))


@pytest.mark.parametrize("mode", ["push", "pull", "both"])
async def test_a_token_is_replaced(mode: str, autojump_clock: MockClock) -> None:
    async with net() as net_:
        hub = Node(net_, "hub")
        leaf = Node(net_, "leaf", to("hub", mode, token="wrong"))
        await until(lambda: set(state(leaf).values()) == {"refused"})
        links = leaf.chain.links
        await leaf.take(*events(1, 2))
        reload(leaf, to("hub", mode))
        # At once: there is no pause between the old settings and the new ones.
        await until(lambda: set(state(leaf).values()) == {"up"}, 2)
        assert leaf.chain.links == links
        if mode != "pull":
            await until(lambda: hub.held() == ids(1, 2))
        if mode != "push":
            await hub.take(*events(7, session="down"))
            await until(lambda: leaf.held("down") == ids(7, session="down"))


async def test_a_changed_link_still_owes_what_no_buffer_holds(autojump_clock: MockClock) -> None:
    async with net() as net_:
        leaf, hub, other = await build(net_, to("hub"))
        agent = await leaf.greeted("emitter", "coder", headers=BEARER)
        agent.say(*events(1, session="w"))
        await until(lambda: hub.held("w") == ids(1, session="w"))
        net_.stop("hub")
        await leaf.take(*events(*range(200)))
        agent.say(*events(2, session="w"))
        await until(lambda: push(leaf).ledger.kept.size_bytes > 0)
        # Its name leads to another relay now, over which everything goes that was owed to the first.
        reload(leaf, to("other", label="hub"))
        await until(lambda: len(other.held()) == 200 and other.held("w") == ids(1, 2, session="w"))
        assert other.held() == ids(*range(200))
        assert push(leaf).ledger.lost_events == push(leaf).ledger.dropped_events == 0
        assert [entry["session"] for entry in other.relay.roster()] == ["w"]


async def test_a_wider_filter_lets_what_is_held_pass(autojump_clock: MockClock) -> None:
    narrow = '{"severity": {"gte": "error"}}'
    async with net() as net_:
        leaf, hub, other = await build(net_, to("hub", filter=narrow), to("other", "pull", filter=narrow))
        await leaf.take(*events(1))
        await other.take(*events(1, session="down"))
        await leaf.take(*events(2, severity="error"))
        await until(lambda: hub.held() == ids(2))
        assert leaf.held("down") == []
        reload(leaf, to("hub"), to("other", "pull"))
        await until(lambda: hub.held() == ids(1, 2) and leaf.held("down") == ids(1, session="down"))


async def test_another_mode_is_another_link(autojump_clock: MockClock) -> None:
    async with net() as net_:
        leaf, hub, _ = await build(net_, to("hub"))
        reload(leaf, to("hub", "both"))
        await until(lambda: state(leaf) == {"hub-push": "up", "hub-pull": "up"})
        await hub.take(*events(1, session="down"))
        await leaf.take(*events(1))
        await until(lambda: leaf.held("down") == ids(1, session="down") and hub.held() == ids(1))
        reload(leaf, to("hub", "pull"))
        await until(lambda: state(leaf) == {"hub": "up"})
        await leaf.take(*events(2))
        await trio.sleep(10)
        assert hub.held() == ids(1)


async def test_what_cannot_be_used_changes_nothing(autojump_clock: MockClock) -> None:
    async with net() as net_:
        leaf, hub, _ = await build(net_, to("hub"))
        dial = leaf.chain._dial

        def failing(upstream: Upstream) -> Any:
            if upstream.name == "bad":
                raise OSError("no such file")
            return dial(upstream)

        leaf.chain._dial = failing
        wanted = Config(upstreams=(to("hub", token="other"), to("other", label="bad")))
        with pytest.raises(ConfigError, match="upstream bad: its certificates cannot be used: no such file"):
            leaf.chain.prepare(wanted)
        assert push(leaf).upstream.token == TOKEN
        await leaf.take(*events(1))
        await until(lambda: hub.held() == ids(1))
        assert push(leaf).times_up == 1


async def test_it_ends_after_changes(autojump_clock: MockClock) -> None:
    async with net() as net_:
        leaf, hub, _ = await build(net_)
        reload(leaf, to("hub"))
        await until(lambda: set(state(leaf).values()) == {"up"})
        await leaf.take(*events(1))
        with trio.fail_after(2):
            await leaf.chain.finish()
        assert hub.held() == ids(1)
        assert push(leaf).state == "stopped"
