"""Pull, from an origin to an edge: what consumers of the edge see, over restarts and losses."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from aep_relay.hub.limits import Limits
from aep_relay.upstream.pull import PullLink
from tests.bindings.served import BEARER, Socket, settle
from tests.upstream.net import PATIENT, Net, Node, event, events, heard, ids, net, to, until


def pull(edge: Node) -> PullLink:
    (link,) = edge.chain.pulls
    return link


async def pair(net_: Net, *, limits: Limits = PATIENT, **settings: Any) -> tuple[Node, Node]:
    origin = Node(net_, "origin", limits=limits)
    edge = Node(net_, "edge", to("origin", "pull", **settings))
    await until(lambda: edge.link.state == "up")
    return origin, edge


async def watcher(node: Node, from_: object = None, **members: object) -> Socket:
    socket = await node.greeted("consumer", headers=BEARER)
    frame: dict[str, object] = {"type": "subscribe", "id": "w", **members}
    if from_ is not None:
        frame["from"] = from_
    socket.say(frame)
    await settle()
    return socket


def seen(socket: Socket) -> list[str]:
    return [frame["id"] for frame in socket.heard() if "." in frame["type"]]


async def test_the_edge_begins_with_all_that_is_held_and_goes_on_live(autojump_clock: MockClock) -> None:
    async with net() as net_:
        origin = Node(net_, "origin")
        await origin.take(*events(*range(2000)), *events(*range(10), session="t"))
        edge = Node(net_, "edge", to("origin", "pull"))
        watching = await watcher(edge, "all")
        await until(lambda: len(edge.held()) == 2000 and len(edge.held("t")) == 10)
        await origin.take(*events(2000))
        await until(lambda: len(edge.held()) == 2001)
        assert edge.held() == ids(*range(2001))
        got = seen(watching)
        assert sorted(got) == sorted([*ids(*range(2001)), *ids(*range(10), session="t")])
        assert [id_ for id_ in got if id_.startswith("s")] == ids(*range(2001))
        assert edge.relay.claims.of("s") == []


async def test_it_goes_on_by_positions_and_shows_nothing_twice(autojump_clock: MockClock) -> None:
    async with net() as net_:
        origin, edge = await pair(net_)
        await origin.take(*events(1, 2), event("r", None, type="attention.routed"))
        await until(lambda: len(edge.held()) == 3)
        watching = await watcher(edge, "all")
        assert seen(watching) == ["s1", "s2", "r"]
        for round_ in range(3):
            net_.cut("origin")
            base = 3 + 2 * round_
            # A session that began meanwhile is not named by any position.
            await origin.take(*events(base, base + 1), *events(1, session=f"new{round_}"))
            net_.mend("origin")
            await until(lambda: len(edge.held()) == 3 + 2 * (round_ + 1))  # noqa: B023
            await until(lambda: edge.held(f"new{round_}") == ids(1, session=f"new{round_}"))  # noqa: B023
            assert sorted(seen(watching)) == sorted([*ids(base, base + 1), f"new{round_}1"])
        assert edge.held() == ["s1", "s2", "r", *ids(*range(3, 9))]


async def test_an_edge_that_restarts_has_it_all_again(autojump_clock: MockClock) -> None:
    async with net() as net_:
        origin, edge = await pair(net_)
        await origin.take(*events(1, 2))
        await until(lambda: edge.held() == ids(1, 2))
        edge.kill()
        await origin.take(*events(3))
        edge.start()
        await until(lambda: edge.held() == ids(1, 2, 3))
        resumed = await watcher(edge, [{"session": "s", "seq": 2}])
        assert seen(resumed) == ["s3"]


async def test_an_origin_that_is_replaced_by_an_empty_one(autojump_clock: MockClock) -> None:
    async with net() as net_:
        origin, edge = await pair(net_)
        await origin.take(*events(1, 2))
        await until(lambda: edge.held() == ids(1, 2))
        watching = await watcher(edge)
        origin.kill()
        await trio.sleep(20)
        origin.start()
        await origin.take(*events(3), *events(1, session="t"))
        await until(lambda: edge.held() == ids(1, 2, 3) and edge.held("t") == ids(1, session="t"))
        assert sorted(seen(watching)) == ["s3", "t1"]


async def test_an_origin_that_begins_anew_and_is_sent_all_again(autojump_clock: MockClock) -> None:
    async with net() as net_:
        origin, edge = await pair(net_)
        leaf = Node(net_, "leaf", to("origin"))
        agent = await leaf.greeted("emitter", headers=BEARER)
        ack = event("s3", 3, type="control.accepted", cause="c")
        agent.say(*events(1, 2), ack)
        await leaf.take(*events(*range(50), session="p"))
        await until(lambda: edge.held() == ids(1, 2, 3) and len(edge.held("p")) == 50)
        watching = await watcher(edge)
        origin.kill()
        agent.say(*events(4))
        await trio.sleep(3)
        origin.start()
        await until(
            lambda: origin.held() == edge.held() == ids(1, 2, 3, 4) and len(origin.held("p")) == 50, 120
        )
        await trio.sleep(10)
        # An acknowledgement may have been repeated on purpose.
        assert [id_ for id_ in seen(watching) if id_ != "s3"] == ids(4)


async def test_what_the_origin_has_lost_is_lost_here_exactly(autojump_clock: MockClock) -> None:
    async with net() as net_:
        origin, edge = await pair(net_, limits=Limits(buffer_events=3, ping_timeout_seconds=1e9))
        await origin.take(*events(1, 2))
        await until(lambda: edge.held() == ids(1, 2))
        net_.cut("origin")
        await origin.take(*events(*range(3, 10)))
        net_.mend("origin")
        await until(lambda: edge.held() == ids(7, 8, 9))
        assert pull(edge).exhausted_sessions == 1
        for seq, exhausted in ((1, True), (2, True), (7, False), (8, False)):
            late = await watcher(edge, [{"session": "s", "seq": seq}])
            frames = [frame for frame in late.heard() if frame["type"] == "replay-exhausted"]
            earliest = [{"epoch": 0, "seq": 7}] if exhausted else []
            assert [frame["earliest"] for frame in frames] == earliest


async def test_a_repeated_acknowledgement_passes(autojump_clock: MockClock) -> None:
    async with net() as net_:
        origin, edge = await pair(net_)
        ack = event("s2", 2, type="control.accepted", cause="c")
        await origin.take(*events(1), ack)
        await until(lambda: edge.held() == ids(1, 2))
        watching = await watcher(edge)
        await origin.take(ack)
        assert [frame["id"] for frame in await heard(watching)] == ["s2"]
        net_.cut("origin")
        await until(lambda: edge.link.state != "up")
        net_.mend("origin")
        await until(lambda: edge.link.state == "up")
        await origin.take(ack)
        assert [frame["id"] for frame in await heard(watching)] == ["s2"]
        await trio.sleep(5)
        assert watching.heard() == []


async def test_a_command_goes_up_and_a_refusal_comes_back(autojump_clock: MockClock) -> None:
    async with net() as net_:
        origin, edge = await pair(net_)
        accepts = {"control": {"accepts": ["control.cancel"]}}
        agent = await origin.greeted("emitter", "coder", accepts, headers=BEARER)
        agent.say(*events(1))
        await until(lambda: edge.held() == ids(1))
        boss = await watcher(edge, filter={"type": "control.*"})
        boss.heard()
        command = json.loads(event("c1", None, type="control.cancel", agent="boss"))
        boss.say(command)
        assert await heard(agent) == [command]
        agent.say(event("s2", 2, type="control.accepted", cause="c1"))
        assert [frame["id"] for frame in await heard(boss, 2)] == ["c1", "s2"]
        boss.say({**command, "id": "c2", "type": "control.pause"})
        (refused,) = await heard(boss)
        assert refused == {
            "type": "error",
            "cause": "c2",
            "code": "unsupported",
            "detail": "the claimant of this session does not accept this type of command",
        }
        agent.wire.feed_end()
        await settle()
        boss.say({**command, "id": "c3"})
        (refused,) = await heard(boss)
        assert (refused["code"], refused["cause"]) == ("no-route", "c3")
        # A session that the link has not fed is none of its business.
        boss.say({**command, "id": "c4", "session": "unheard-of"})
        (refused,) = await heard(boss)
        assert (refused["code"], refused["cause"]) == ("no-route", "c4")
        assert pull(edge).forwarding.forwarded_commands == 3


async def test_a_session_that_is_claimed_here_is_commanded_here(autojump_clock: MockClock) -> None:
    async with net() as net_:
        origin, edge = await pair(net_)
        await origin.take(*events(1))
        await until(lambda: edge.held() == ids(1))
        accepts = {"control": {"accepts": ["control.cancel"]}}
        agent = await edge.greeted("emitter", "coder", accepts, headers=BEARER)
        agent.say(*events(2))
        boss = await edge.greeted("consumer", headers=BEARER)
        boss.say(event("c1", None, type="control.cancel"))
        assert [frame["id"] for frame in await heard(agent)] == ["c1"]
        assert pull(edge).forwarding.forwarded_commands == 0


async def test_no_command_goes_up_while_the_link_is_down(autojump_clock: MockClock) -> None:
    async with net() as net_:
        origin, edge = await pair(net_)
        await origin.take(*events(1))
        await until(lambda: edge.held() == ids(1))
        net_.cut("origin")
        await settle()
        boss = await edge.greeted("consumer", headers=BEARER)
        boss.say(event("c1", None, type="control.cancel"))
        (refused,) = await heard(boss)
        assert (refused["code"], refused["cause"]) == ("no-route", "c1")


async def test_ceiling_and_filter(autojump_clock: MockClock) -> None:
    async with net() as net_:
        origin, edge = await pair(net_, capture="metadata", filter='{"severity": {"gte": "error"}}')
        data = {"tool": {"name": "Bash"}, "result_redacted": "secret"}
        await origin.take(*events(1), event("s2", 2, severity="error", capture="redacted", data=data))
        await until(lambda: edge.held() == ids(2))
        assert all(b"secret" not in line.sent for line in net_.lines["origin"])
        buffer = edge.relay.store.get("s")
        assert buffer is not None
        assert b"secret" not in buffer.read(buffer.cursor_at_start(), 9, 9999)[0][0].raw


async def test_more_sessions_than_the_origin_resumes_at_once(autojump_clock: MockClock) -> None:
    async with net() as net_:
        limits = Limits(max_from_positions=3, ping_timeout_seconds=1e9)
        origin, edge = await pair(net_, limits=limits)
        for session in "abcdefgh":
            await origin.take(*events(1, session=session))
        await until(lambda: len(edge.relay.store) == 8)
        watching = await watcher(edge)
        net_.cut("origin")
        for session in "abcdefgh":
            await origin.take(*events(2, session=session))
        net_.mend("origin")
        await until(lambda: all(edge.held(session) == ids(1, 2, session=session) for session in "abcdefgh"))
        assert sorted(seen(watching)) == [f"{session}2" for session in "abcdefgh"]


async def test_consumers_do_not_notice_an_outage(autojump_clock: MockClock) -> None:
    async with net() as net_:
        _, edge = await pair(net_)
        watching = await watcher(edge)
        watching.heard()
        net_.stop("origin")
        await edge.take(*events(1, session="local"))
        assert [frame["id"] for frame in await heard(watching)] == ["local1"]
        await trio.sleep(120)
        assert edge.link.state != "up"
        await edge.take(*events(2, session="local"))
        assert seen(watching) == ["local2"]
        net_.mend("origin")
        await until(lambda: edge.link.state == "up")


async def test_it_ends_when_the_relay_does(autojump_clock: MockClock) -> None:
    async with net() as net_:
        origin, edge = await pair(net_)
        (peer,) = edge.relay.peers.values()
        assert (peer.binding, peer.role) == ("upstream", "emitter")
        edge.relay.close(peer, "shutdown", 1001)
        await until(lambda: edge.link.state == "stopped")
        await until(lambda: not origin.relay.peers)
        assert not edge.relay.peers


@pytest.mark.parametrize("first", ["leaf", "hub", "edge"])
async def test_over_three_hops(first: str, autojump_clock: MockClock) -> None:
    """A leaf pushes to a hub, the hub to the top, and an edge pulls from there."""
    async with net() as net_:
        makers = {
            "top": lambda: Node(net_, "top"),
            "hub": lambda: Node(net_, "hub", to("top")),
            "leaf": lambda: Node(net_, "leaf", to("hub")),
            "edge": lambda: Node(net_, "edge", to("top", "pull")),
        }
        order = [first, *(name for name in makers if name != first)]
        nodes: dict[str, Node] = {}
        for name in order:
            nodes[name] = makers[name]()
            await trio.sleep(3)
        await until(
            lambda: all(link["state"] == "up" for node in nodes.values() for link in node.chain.describe())
        )
        accepts = {"control": {"accepts": ["control.cancel"]}}
        agent = await nodes["leaf"].greeted("emitter", "coder", accepts, headers=BEARER)
        agent.say(*events(1))
        await until(lambda: nodes["edge"].held() == ids(1))
        assert [entry["control"] for entry in nodes["top"].relay.roster()] == [accepts["control"]]
        boss = await watcher(nodes["edge"], filter={"type": "control.*"})
        boss.heard()
        boss.say(event("c1", None, type="control.cancel", agent="boss"))
        assert [frame["id"] for frame in await heard(agent)] == ["c1"]
        agent.say(event("s2", 2, type="control.accepted", cause="c1"))
        assert [frame["id"] for frame in await heard(boss, 2)] == ["c1", "s2"]
        agent.wire.feed_end()
        await until(lambda: nodes["top"].relay.roster() == [])


async def test_a_link_in_both_directions(autojump_clock: MockClock) -> None:
    async with net() as net_:
        hub = Node(net_, "hub")
        a, b = (Node(net_, name, to("hub", "both")) for name in ("a", "b"))
        await until(lambda: all(link["state"] == "up" for node in (a, b) for link in node.chain.describe()))
        watching = [await watcher(node) for node in (a, b, hub)]
        accepts = {"control": {"accepts": ["control.cancel"]}}
        agent = await a.greeted("emitter", "coder", accepts, headers=BEARER)
        agent.say(event("s1", 1), event("x", None, None, type="agent.status"))
        await b.take(*events(1, session="t"), event("r", None, "t", type="attention.routed"))
        await trio.sleep(5)
        for socket in watching:
            assert sorted(seen(socket)) == ["r", "s1", "t1", "x"]
        boss = await b.greeted("consumer", "boss", headers=BEARER)
        boss.say(event("c1", None, type="control.cancel", agent="boss"))
        assert [frame["id"] for frame in await heard(agent)] == ["c1"]
        agent.say(event("s2", 2, type="control.accepted", cause="c1"))
        await trio.sleep(5)
        for socket in watching:
            assert sorted(seen(socket)) == ["c1", "s2"]
        assert hub.relay.feeders.loops == {}
        net_.cut("hub")
        agent.say(event("s3", 3))
        await a.take(*events(1, session="u"))
        net_.mend("hub")
        await until(lambda: b.held() == ["s1", "c1", "s2", "s3"] and b.held("u") == ["u1"])
        assert a.held() == ["s1", "c1", "s2", "s3"]
        await trio.sleep(5)
        assert sorted(seen(watching[0])) == ["s3", "u1"]
        # What claims the session again at the hub is no news to whoever is connected here.
        net_.cut("hub")
        net_.mend("hub")
        await until(lambda: [entry["session"] for entry in hub.relay.roster()] == ["s"])
        await trio.sleep(5)
        assert seen(watching[0]) == []
