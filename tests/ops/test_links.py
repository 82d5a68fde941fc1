"""What metrics and health tell of upstream links."""

from __future__ import annotations

from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from trio.testing import MockClock

from aep_relay.ops import health, links
from aep_relay.ops.metrics import Exposition
from aep_relay.ops.observer import Observer
from tests.bindings.served import BEARER
from tests.ops.observed import Observation
from tests.upstream.net import Node, event, events, ids, net, to, until


async def scraped(service: Any) -> dict[str, float]:
    text, _ = await Exposition(Observer(service)).render("")
    return {
        sample.name.removeprefix("aep_relay_")
        + "".join(f"[{value}]" for value in sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


async def test_links_tell_what_they_did(autojump_clock: MockClock) -> None:
    async with net() as net_:
        hub = Node(net_, "hub")
        leaf = Node(net_, "leaf", to("hub", "both"), to("gone"))
        await until(lambda: all(link.state == "up" for link in leaf.chain.links[:2]))
        agent = await leaf.greeted("emitter", "coder", headers=BEARER)
        agent.say(event("w1", 1, "w"))
        await leaf.take(*events(1, 2))
        await hub.take(*events(1, session="down"))
        await until(lambda: hub.held() == ids(1, 2) and leaf.held("down") == ids(1, session="down"))
        await until(lambda: hub.held("w") == ids(1, session="w"))
        net_.cut("hub")
        await until(lambda: leaf.chain.links[0].state != "up" and leaf.chain.links[2].attempts >= 2)
        net_.mend("hub")
        await until(lambda: all(link.state == "up" for link in leaf.chain.links[:2]))
        found = await scraped(leaf.service)
        assert found["upstream_up[hub-push]"] == found["upstream_links[hub-pull][up]"] == 1
        assert found["upstream_up[gone]"] == 0
        assert found["upstream_connects_total[hub-push]"] == 2
        assert found["upstream_attempts_total[gone]"] >= 2
        assert found["upstream_events_pushed_total[hub-push]"] == 3
        assert found["upstream_events_pulled_total[hub-pull]"] == 1
        assert found["upstream_events_resent_total[hub-push]"] == 0
        assert found["upstream_mirrors[hub-push]"] == 1
        assert found["upstream_events_given_up_total[hub-push][notice]"] == 0
        assert "upstream_events_pulled_total[hub-push]" not in found
        document = health.readiness(Observer(leaf.service))
        assert document["links"] == {"hub-push": "up", "hub-pull": "up", "gone": leaf.chain.links[2].state}


async def test_what_an_outage_cost_is_told_by_severity(autojump_clock: MockClock) -> None:
    async with net() as net_:
        leaf = Node(net_, "leaf", to("gone", buffer_bytes=64 * 1024))
        given = {"debug": 150, "error": 1, "info": 100}
        for severity, count in given.items():
            beside = [
                event(f"{severity}{number}", None, None, type="agent.status", severity=severity)
                for number in range(count)
            ]
            await leaf.take(*beside)
        found = await scraped(leaf.service)
        cost = {name: found[f"upstream_events_given_up_total[gone][{name}]"] for name in given}
        # The oldest go first, of those below notice.
        assert cost["debug"] == 150
        assert 0 < cost["info"] < 100
        assert cost["error"] == 0


async def test_a_circle_is_named_by_its_path(autojump_clock: MockClock) -> None:
    async with net() as net_:
        me = Node(net_, "me", to("me"))
        await until(lambda: me.link.state == "loop")
        found = await scraped(me.service)
        assert found["loops_refused_total[me1 -> me1]"] >= 1
        assert found["upstream_links[me][loop]"] == 1
        assert health.readiness(Observer(me.service))["links"] == {"me": "loop"}


async def test_labels_are_bounded() -> None:
    many = [{"name": f"l{number}", "state": "up", "attempts": 2} for number in range(links.MAX_LINKS + 5)]
    service = Observation(links=lambda: many)
    for first in "ab":
        service.relay.feeders.found(tuple(f"{first}{'x' * 120}{number}" for number in range(50)))
    found = await scraped(service)
    names = [name for name in found if name.startswith("upstream_attempts_total[")]
    assert len(names) == links.MAX_LINKS + 1
    assert found["upstream_attempts_total[other]"] == found["upstream_up[other]"] * 2 == 10
    paths = [name for name in found if name.startswith("loops_refused_total[")]
    assert len(paths) == 2
    assert max(map(len, paths)) < links.MAX_PATH_CHARACTERS + 30
