"""Push, from a leaf to a hub: what arrives, in which order, as which bytes, and what an outage costs."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from aep_relay.hub.limits import Limits
from aep_relay.protocol.event import decode
from aep_relay.upstream.push import PushLink
from tests.bindings.served import BEARER, settle
from tests.fakes.turns import turns as turns
from tests.upstream.net import Net, Node, event, events, heard, ids, net, to, until


def push(leaf: Node) -> PushLink:
    (link,) = leaf.chain.pushes
    return link


async def pair(net_: Net, **settings: Any) -> tuple[Node, Node]:
    hub = Node(net_, "hub")
    leaf = Node(net_, "leaf", to("hub", **settings))
    await until(lambda: leaf.link.state == "up")
    return hub, leaf


async def test_what_is_posted_arrives_as_it_came_in(autojump_clock: MockClock) -> None:
    async with net() as net_:
        hub, leaf = await pair(net_)
        odd = (
            b'{ "aep":"0.1",\n "id":"odd", "type":"tool.completed","time":"2026-07-03T10:15:04Z",\r\n "source":"aep://a",'
            b' "agent":"b", "session":"odd", "seq":1e1, "ext":"\\u00e9"}'
        )
        await leaf.take(odd)
        await leaf.take(*events(*range(1500)))
        await until(lambda: len(hub.held()) == 1500)
        assert hub.held() == ids(*range(1500))
        (held,) = hub.relay.store.get("odd").read(hub.relay.store.get("odd").cursor_at_start(), 9, 9999)[0]  # type: ignore[union-attr]
        assert held.raw == odd
        assert hub.relay.claims.of("s") == []
        assert push(leaf).ledger.unconfirmed_bytes == 0


async def test_an_emitter_has_a_mirror_with_its_own_hello_that_leaves_with_it(
    autojump_clock: MockClock,
) -> None:
    async with net() as net_:
        hub, leaf = await pair(net_)
        control = {"accepts": ["control.cancel"], "ack_window_ms": 5, "x": [1.5, None, "é"]}
        agent = await leaf.greeted(
            "emitter", "coder", {"control": control, "emits": ["tool"]}, headers=BEARER
        )
        agent.say(*events(1, 2))
        await until(lambda: hub.held() == ids(1, 2))
        (entry,) = hub.relay.roster()
        assert entry == {
            "session": "s",
            "agent": "coder",
            "instance": "coder/1",
            "control": control,
            "emits": ["tool"],
        }
        (mirror,) = [peer for peer in hub.relay.peers.values() if peer.role == "emitter"]
        assert mirror.identity == {"agent": "coder", "instance": "coder/1"}
        agent.say(event("s3", 3))
        agent.wire.feed_end()
        await until(lambda: hub.relay.roster() == [])
        assert hub.held() == ids(1, 2, 3)
        assert push(leaf).mirrors == {}


async def test_a_command_comes_down_and_its_acknowledgement_goes_up_again_and_again(
    autojump_clock: MockClock,
) -> None:
    async with net() as net_:
        hub, leaf = await pair(net_)
        accepts = {"control": {"accepts": ["control.cancel"]}}
        agent = await leaf.greeted("emitter", "coder", accepts, headers=BEARER)
        agent.say(event("s1", 1))
        await until(lambda: hub.held() == ids(1))
        boss = await hub.greeted("consumer", "boss", headers=BEARER)
        await boss.ask({"type": "subscribe", "id": "a", "filter": {"type": "control.*"}})
        command = json.loads(event("c1", None, type="control.cancel", agent="boss"))
        ack = json.loads(event("s2", 2, type="control.accepted", cause="c1"))
        for _ in range(2):
            boss.say(command)
            assert await heard(agent) == [command]
            agent.say(ack)
            assert [frame["id"] for frame in await heard(boss, 2)] == ["c1", "s2"]
        boss.say({**command, "id": "c2", "type": "control.pause"})
        refused = await heard(boss)
        assert [(frame["code"], frame["cause"]) for frame in refused] == [("unsupported", "c2")]


async def test_an_outage_costs_nothing_that_the_leaf_holds(autojump_clock: MockClock) -> None:
    async with net() as net_:
        hub, leaf = await pair(net_)
        await leaf.take(*events(*range(10)))
        await until(lambda: len(hub.held()) == 10)
        net_.cut("hub")
        await leaf.take(*events(*range(10, 3000)))
        assert leaf.link.state != "up"
        assert push(leaf).ledger.unconfirmed_bytes == 0
        net_.mend("hub")
        await until(lambda: len(hub.held()) == 3000)
        assert hub.held() == ids(*range(3000))
        assert push(leaf).ledger.lost_events == push(leaf).ledger.dropped_events == 0


async def test_claims_come_back_with_a_hub_that_was_replaced_by_an_empty_one(
    autojump_clock: MockClock,
) -> None:
    async with net() as net_:
        hub, leaf = await pair(net_)
        agent = await leaf.greeted("emitter", "coder", headers=BEARER)
        agent.say(*events(1, 2))
        await until(lambda: hub.held() == ids(1, 2))
        hub.kill()
        agent.say(event("t1", 1, "t"))
        await trio.sleep(5)
        hub.start()
        await until(lambda: len(hub.relay.claims) == 2)
        await until(lambda: hub.held() == ids(1, 2) and hub.held("t") == ids(1, session="t"))
        assert [entry["session"] for entry in hub.relay.roster()] in (["s", "t"], ["t", "s"])


async def test_claims_come_back_with_a_connection(autojump_clock: MockClock) -> None:
    async with net() as net_:
        hub, leaf = await pair(net_)
        agent = await leaf.greeted("emitter", "coder", headers=BEARER)
        agent.say(*events(1, 2), *events(1, session="t"))
        await until(lambda: hub.held() == ids(1, 2) and hub.held("t") == ids(1, session="t"))
        before = hub.relay.stats.received_events
        net_.cut("hub")
        await until(lambda: leaf.link.state != "up")
        assert hub.relay.roster() == []
        net_.mend("hub")
        await until(lambda: len(hub.relay.claims) == 2)
        # What claims again is one Event of each session, sent again.
        assert hub.relay.stats.received_events == before + 2
        assert push(leaf).ledger.confirmed_events == 3


async def test_a_hub_that_begins_anew_is_sent_all_that_is_held(autojump_clock: MockClock) -> None:
    async with net() as net_:
        hub, leaf = await pair(net_)
        agent = await leaf.greeted("emitter", "coder", headers=BEARER)
        agent.say(*events(1, 2))
        await leaf.take(*events(*range(500), session="p"))
        await until(lambda: len(hub.held("p")) == 500 and hub.held() == ids(1, 2))
        hub.kill()
        hub.start()
        await until(lambda: len(hub.held("p")) == 500 and hub.held() == ids(1, 2))
        assert hub.held("p") == ids(*range(500), session="p")
        assert [entry["session"] for entry in hub.relay.roster()] == ["s"]


async def test_an_emitter_that_leaves_in_an_outage(autojump_clock: MockClock) -> None:
    async with net() as net_:
        hub, leaf = await pair(net_)
        agent = await leaf.greeted("emitter", "coder", headers=BEARER)
        agent.say(event("s1", 1))
        await until(lambda: hub.held() == ids(1))
        net_.cut("hub")
        agent.say(event("s2", 2))
        agent.wire.feed_end()
        await trio.sleep(10)
        net_.mend("hub")
        await until(lambda: hub.held() == ids(1, 2))
        assert hub.relay.roster() == []


@pytest.mark.parametrize("severity", ["info", "notice"])
async def test_an_hour_of_outage_costs_bounded_memory(severity: str, autojump_clock: MockClock) -> None:
    async with net() as net_:
        hub = Node(net_, "hub")
        leaf = Node(net_, "leaf", to("hub", buffer_bytes=64 * 1024), limits=Limits(buffer_events=100))
        net_.stop("hub")
        seq, most = 0, 0
        for _ in range(60):
            await leaf.take(*events(*range(seq, seq + 100), severity=severity))
            await leaf.take(event(f"alarm{seq}", seq, "alarms"))
            seq += 100
            most = max(most, push(leaf).ledger.unconfirmed_bytes)
            await trio.sleep(60)
        assert most <= 64 * 1024
        assert len(push(leaf).ledger.behind) == 2
        net_.mend("hub")
        await until(lambda: bool(hub.held()) and hub.held()[-1] == f"s{seq - 1}")
        assert hub.held("alarms") == [f"alarm{n}" for n in range(0, seq, 100)]
        ledger = push(leaf).ledger
        given_up = seq - len(hub.held())
        assert (ledger.dropped_events, ledger.lost_events) == (
            (given_up, 0) if severity == "info" else (0, given_up)
        )


async def test_a_hub_that_stalls_is_given_up_and_found_again(autojump_clock: MockClock) -> None:
    async with net() as net_:
        hub, leaf = await pair(net_, answer_timeout_seconds=20.0)
        agent = await leaf.greeted("emitter", "coder", headers=BEARER)
        agent.say(event("w1", 1, "w"))
        await until(lambda: hub.held("w") == ids(1, session="w"))
        net_.stop("hub")
        await leaf.take(*events(*range(5)))
        agent.say(event("w2", 2, "w"))
        await trio.sleep(120)
        assert leaf.link.state != "up"
        net_.mend("hub")
        await until(lambda: len(hub.held()) == 5 and hub.held("w") == ids(1, 2, session="w"))


async def test_an_idle_link_that_stands_still_is_noticed(autojump_clock: MockClock) -> None:
    async with net() as net_:
        _, leaf = await pair(net_)
        net_.stop("hub")
        await trio.sleep(120)
        assert leaf.link.state != "up"


async def test_the_ceiling_holds_before_anything_leaves(autojump_clock: MockClock) -> None:
    async with net() as net_:
        hub, leaf = await pair(net_, capture="metadata")
        data = {"tool": {"name": "Bash"}, "result_redacted": "secret"}
        await leaf.take(event("s1", 1, capture="redacted", data=data))
        agent = await leaf.greeted("emitter", "coder", headers=BEARER)
        agent.say(event("w1", 1, "w", capture="full", data=data))
        await until(lambda: hub.held() == ids(1) and hub.held("w") == ids(1, session="w"))
        for session in ("s", "w"):
            buffer = hub.relay.store.get(session)
            assert buffer is not None
            (held,) = buffer.read(buffer.cursor_at_start(), 9, 9999)[0]
            assert b"secret" not in held.raw
            assert json.loads(held.raw)["capture"] == "metadata"
        assert all(b"secret" not in line.sent for lines in net_.lines.values() for line in lines)


async def test_others_have_their_turn_while_a_flight_is_down_leveled(
    turns: list[None], autojump_clock: MockClock
) -> None:
    async with net() as net_:
        _, leaf = await pair(net_, capture="metadata")
        flight = [event(f"s{seq}", seq, capture="full", data={"args": {}}) for seq in range(40)]
        taken = [decode(text) for text in flight]
        turns.clear()
        left = await push(leaf).payloads(taken)
        assert {json.loads(text)["capture"] for text in left} == {"metadata"}
        assert len(turns) >= 40


async def test_the_filter_holds(autojump_clock: MockClock) -> None:
    async with net() as net_:
        hub, leaf = await pair(net_, filter='{"severity": {"gte": "warning"}}')
        await leaf.take(*events(1, 2), *events(3, severity="error"))
        await until(lambda: hub.held() == ids(3))
        net_.cut("hub")
        await leaf.take(*events(4), *events(5, severity="error"))
        net_.mend("hub")
        await until(lambda: hub.held() == ids(3, 5))


async def test_commands_never_go_up_and_what_is_beside_sessions_does(autojump_clock: MockClock) -> None:
    async with net() as net_:
        hub, leaf = await pair(net_)
        watcher = await hub.greeted("consumer", headers=BEARER)
        await watcher.ask({"type": "subscribe", "id": "a"})
        accepts = {"control": {"accepts": ["control.cancel"]}}
        agent = await leaf.greeted("both", "coder", accepts, headers=BEARER)
        agent.say(event("s1", 1))
        boss = await leaf.greeted("consumer", "boss", headers=BEARER)
        boss.say(event("c1", None, type="control.cancel", agent="boss"))
        boss.say(event("r1", None, type="attention.routed", agent="boss"))
        agent.say(event("a1", None, None, type="agent.status"))
        assert sorted(frame["id"] for frame in await heard(watcher, 3)) == ["a1", "r1", "s1"]
        await trio.sleep(1)
        assert watcher.heard() == []
        # Who only consumes here is no emitter there.
        assert [peer.role for peer in hub.relay.peers.values()] == ["consumer", "consumer", "both"]


async def test_fifty_leaves_come_back_spread_out(autojump_clock: MockClock) -> None:
    async with net() as net_:
        hub = Node(net_, "hub")
        leaves = [Node(net_, f"leaf{n}", to("hub")) for n in range(50)]
        await until(lambda: all(leaf.link.state == "up" for leaf in leaves))
        hub.kill()
        await trio.sleep(300)
        net_.dialled.clear()
        hub.start()
        began = trio.current_time()
        await until(lambda: all(leaf.link.state == "up" for leaf in leaves), 120)
        first: list[float] = sorted(at - began for at in net_.dialled["hub"])
        seconds = [sum(1 for at in first if second <= at < second + 1) for second in range(31)]
        assert max(seconds) <= 2 * 50 / 5
        assert first[-1] <= 31


async def test_it_drains_what_is_left_and_ends(autojump_clock: MockClock) -> None:
    async with net() as net_:
        hub, leaf = await pair(net_)
        agent = await leaf.greeted("emitter", "coder", headers=BEARER)
        for seq in range(50):
            agent.say(event(f"s{seq}", seq))
        await leaf.take(*events(*range(300), session="p"))
        agent.wire.feed_end()
        await settle()
        with trio.fail_after(2):
            await leaf.chain.finish()
        assert (len(hub.held()), len(hub.held("p"))) == (50, 300)
        assert leaf.link.state == "stopped"
        assert hub.relay.roster() == []


async def test_a_leaf_with_a_black_hole_ends_in_time(autojump_clock: MockClock) -> None:
    async with net() as net_:
        _, leaf = await pair(net_)
        net_.stop("hub")
        await leaf.take(*events(*range(10)))
        began = trio.current_time()
        with trio.move_on_after(2):
            await leaf.chain.finish()
        await until(lambda: leaf.link.state == "stopped")
        assert trio.current_time() - began < 5
