"""Batches up: what each answer of an upstream does to them. The upstream speaks HTTP only."""

from __future__ import annotations

from itertools import pairwise

import pytest
import trio
from trio.testing import MockClock

from aep_relay.upstream.post import MIN_BATCH_BYTES
from aep_relay.upstream.push import PushLink
from tests.bindings.served import TOKEN
from tests.fakes.log import Log
from tests.upstream.net import Net, Node, event, events, ids, net, to, until
from tests.upstream.scripted import ACCEPTED, RESET, SILENCE, Answer, Posted, Scripted, invalid


def chained(net_: Net, upstream: Scripted, **settings: object) -> tuple[Node, PushLink]:
    net_.hosts["hub"] = upstream.serve
    leaf = Node(net_, "leaf", to("hub", **settings))  # type: ignore[arg-type]
    (link,) = leaf.chain.pushes
    return leaf, link


def refusing(poison: str, answer: Answer) -> Scripted:
    """Takes all but batches that hold ``poison``."""
    return Scripted(on_post=lambda posted: answer if poison in posted.ids else ACCEPTED)


async def test_an_upstream_without_websocket_is_pushed_to(autojump_clock: MockClock) -> None:
    async with net() as net_:
        upstream = Scripted()
        leaf, link = chained(net_, upstream)
        await leaf.take(*events(1, 2))
        await until(lambda: upstream.accepted == ids(1, 2))
        (posted,) = [posted for posted in upstream.posts if posted.lines]
        assert posted.content_type == b"application/x-ndjson"
        assert posted.headers[b"aep-version"] == b"0.1"
        assert posted.headers[b"authorization"] == f"Bearer {TOKEN}".encode()
        assert link.describe()["pushed_events"] == 2


async def test_an_emitter_of_an_upstream_without_websocket_is_pushed_for(autojump_clock: MockClock) -> None:
    async with net() as net_:
        upstream = Scripted()
        leaf, link = chained(net_, upstream)
        agent = await leaf.greeted("emitter", headers={"Authorization": f"Bearer {TOKEN}"})
        agent.say(*events(1, 2))
        await until(lambda: link.state == "up")
        agent.say(*events(3))
        await until(lambda: upstream.accepted == ids(1, 2, 3))
        assert link.mirrors == {}


async def test_a_connection_is_kept_and_found_out_to_be_over(autojump_clock: MockClock) -> None:
    async with net() as net_:
        upstream = Scripted()
        leaf, link = chained(net_, upstream)
        await until(lambda: link.state == "up")
        before = upstream.connections
        for seq in range(5):
            await leaf.take(*events(seq))
            await until(lambda: len(upstream.accepted) == seq + 1)  # noqa: B023
        assert upstream.connections == before + 1
        for line in net_.lines["hub"]:
            line.close()
        await leaf.take(*events(5))
        await until(lambda: upstream.accepted == ids(*range(6)))
        assert link.describe()["detail"] == ""
        upstream.keep_alive = False
        await leaf.take(*events(6))
        await until(lambda: len(upstream.accepted) == 7)
        await leaf.take(*events(7))
        await until(lambda: len(upstream.accepted) == 8)


@pytest.mark.parametrize("status", [400, 413, 422])
async def test_a_poisoned_batch_is_split_and_the_culprit_named(
    status: int, autojump_clock: MockClock, log: Log
) -> None:
    async with net() as net_:
        upstream = refusing("s77", (status, invalid() if status == 400 else b"no"))
        leaf, link = chained(net_, upstream)
        await leaf.take(*events(*range(200)))
        await until(lambda: link.posts.lane.is_empty and len(upstream.accepted) >= 199)
        assert upstream.accepted == [id_ for id_ in ids(*range(200)) if id_ != "s77"]
        assert link.refused_events == 1
        assert link.ledger.confirmed_events == 199
        (record,) = log.records("upstream refused an Event")
        assert (record["event_id"], record["session"]) == ("s77", "s")
        assert str(status) in record["detail"]
        assert link.state == "up"


async def test_the_index_of_a_culprit_is_believed(autojump_clock: MockClock) -> None:
    async with net() as net_:

        def on_post(posted: Posted) -> Answer:
            found = posted.ids.index("s77") if "s77" in posted.ids else None
            return ACCEPTED if found is None else (400, invalid(index=found))

        upstream = Scripted(on_post=on_post)
        leaf, link = chained(net_, upstream)
        await until(lambda: link.state == "up")
        await leaf.take(*events(*range(200)))
        await until(lambda: len(upstream.accepted) == 199)
        assert len(upstream.posts) <= 8
        assert link.refused_events == 1


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 415, 426, 500, 503, 302])
async def test_an_upstream_that_refuses_everything_gets_nothing_and_costs_nothing(
    status: int, autojump_clock: MockClock, log: Log
) -> None:
    async with net() as net_:
        refuses = True

        def on_post(posted: Posted) -> Answer:
            return (status, b'{"error":"no","detail":"not you"}') if refuses else ACCEPTED

        upstream = Scripted(on_post=on_post)
        leaf, link = chained(net_, upstream)
        await leaf.take(*events(*range(100)))
        await trio.sleep(300)
        assert len(upstream.posts) < 300
        assert link.refused_events == 0
        assert str(status) in str(link.describe()["detail"])
        assert "not you" in str(link.describe()["detail"])
        assert len(log.records("upstream takes no POST")) == 1
        refuses = False
        await until(lambda: upstream.accepted == ids(*range(100)))
        assert link.describe()["detail"] == ""


async def test_a_token_that_may_not_send_one_event_may_send_the_others(autojump_clock: MockClock) -> None:
    async with net() as net_:
        upstream = refusing("s3", (403, b'{"error":"unauthorized","detail":"not this agent"}'))
        leaf, link = chained(net_, upstream)
        await leaf.take(*events(*range(10)))
        await until(lambda: upstream.accepted == [id_ for id_ in ids(*range(10)) if id_ != "s3"])
        assert link.refused_events == 1


async def test_it_waits_as_long_as_it_is_asked_to(autojump_clock: MockClock) -> None:
    async with net() as net_:
        upstream = Scripted(on_post=lambda posted: (429, b"", [("Retry-After", "20")]))
        leaf, _ = chained(net_, upstream)
        await leaf.take(*events(1))
        await trio.sleep(200)
        times = [posted.at for posted in upstream.posts]
        assert min(b - a for a, b in pairwise(times)) >= 20


@pytest.mark.parametrize("trouble", [RESET, SILENCE])
async def test_a_batch_without_an_answer_is_sent_again(trouble: str, autojump_clock: MockClock) -> None:
    async with net() as net_:
        troubles = [trouble, trouble]
        upstream = Scripted(on_post=lambda posted: troubles.pop() if troubles else ACCEPTED)
        leaf, link = chained(net_, upstream)
        await leaf.take(*events(*range(100)))
        await until(lambda: upstream.accepted == ids(*range(100)), 300)
        assert [posted.ids for posted in upstream.posts][:2] == [ids(*range(100))] * 2
        assert link.ledger.lost_events == 0


async def test_a_proxy_that_takes_less_at_once_gets_less_at_once(autojump_clock: MockClock) -> None:
    async with net() as net_:
        upstream = Scripted(
            on_post=lambda posted: ACCEPTED if sum(map(len, posted.lines)) < 100_000 else (413, b"<html>")
        )
        leaf, link = chained(net_, upstream)
        await leaf.take(*events(*range(1000), subject="x" * 1000))
        await until(lambda: upstream.accepted == ids(*range(1000)))
        refused = [posted for posted in upstream.posts if sum(map(len, posted.lines)) >= 100_000]
        assert len(refused) < 10
        assert link.refused_events == 0


async def test_one_event_that_is_too_large_even_for_itself(autojump_clock: MockClock) -> None:
    async with net() as net_:
        most = 2 * MIN_BATCH_BYTES
        upstream = Scripted(
            on_post=lambda posted: ACCEPTED if sum(map(len, posted.lines)) < most else (413, b"<html>")
        )
        leaf, link = chained(net_, upstream)
        await leaf.take(event("s1", 1), event("s2", 2, subject="x" * most), event("s3", 3))
        await until(lambda: upstream.accepted == ids(1, 3))
        assert link.refused_events == 1


async def test_batches_keep_to_their_bounds(autojump_clock: MockClock) -> None:
    async with net() as net_:
        upstream = Scripted()
        leaf, _ = chained(net_, upstream, max_batch_events=7, max_batch_bytes=2000)
        await leaf.take(*events(*range(100)))
        await until(lambda: upstream.accepted == ids(*range(100)))
        assert max(len(posted.lines) for posted in upstream.posts) <= 7
        assert max(sum(map(len, posted.lines)) for posted in upstream.posts) <= 2000


async def test_what_is_given_up_is_reported_once_a_minute(autojump_clock: MockClock, log: Log) -> None:
    async with net() as net_:
        upstream = Scripted(
            on_post=lambda posted: (400, invalid()) if any("bad" in i for i in posted.ids) else ACCEPTED
        )
        leaf, link = chained(net_, upstream)
        for number in range(50):
            await leaf.take(event(f"bad{number}", number))
        await until(lambda: link.refused_events == 50)
        await trio.sleep(130)
        assert len(log.records("upstream refused an Event")) == 20
        (record,) = log.records("events given up")
        assert (record["refused"], record["debug_or_info"], record["notice_or_above"]) == (50, 0, 0)
