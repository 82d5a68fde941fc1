"""Commands: who may send them, whom they reach, and what everybody else sees (AEP-0004)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import trio

from aep_relay.hub.limits import Limits
from tests.bindings.served import BEARER, TOKEN, Served, Socket, command, event, serving, settle

if TYPE_CHECKING:
    from trio.testing import MockClock

ACCEPTS = {"control": {"accepts": ["control.cancel", "control.attention.respond", "x.acme.control.retry"]}}


async def target(
    relay: Served, session: str = "s", capabilities: dict[str, Any] | None = None, role: str = "emitter"
) -> Socket:
    """Return a connection that claims ``session``."""
    socket = await relay.greeted(
        role, "worker", ACCEPTS if capabilities is None else capabilities, headers=BEARER
    )
    assert await socket.ask(event(0, session)) == []
    return socket


async def sender(relay: Served, role: str = "consumer") -> Socket:
    return await relay.greeted(role, "operator", headers=BEARER)


def refusal(answers: list[Any]) -> tuple[str, str]:
    """Return code and cause of the one refusal that ``answers`` hold."""
    (answer,) = answers
    assert set(answer) == {"type", "cause", "code", "detail"}
    assert answer["type"] == "error"
    assert answer["detail"]
    return answer["code"], answer["cause"]


@pytest.mark.parametrize("role", ["emitter", "consumer", "both"])
@pytest.mark.parametrize("type_", ["control.cancel", "control.attention.respond", "x.acme.control.retry"])
async def test_a_command_reaches_its_one_target_byte_for_byte(role: str, type_: str) -> None:
    async with serving(token=TOKEN) as relay:
        worker, other = await target(relay), await target(relay, "t")
        operator = await sender(relay, role)
        odd = b' {"data": {"x": [1.0, 1e2]},\n "reason":"ext",' + command(type_=type_).lstrip(b"{") + b"\r\n"
        assert await operator.ask(odd) == []
        assert worker.raw() == [odd.strip()]
        assert other.raw() == []


async def test_it_is_shown_to_who_watches_and_kept_in_the_history() -> None:
    async with serving(token=TOKEN) as relay:
        worker = await target(relay)
        watcher = await relay.stream("", BEARER)
        operator, silent = await sender(relay), await sender(relay)
        await operator.ask({"type": "subscribe", "id": "a", "filter": {"session": "s"}})
        await operator.ask(command())
        await worker.ask(event(1, type_="control.accepted", cause="c-1"))
        assert watcher.events() == [command(), event(1, type_="control.accepted", cause="c-1")]
        assert silent.raw() == []
        held = await relay.stream('?live=0&filter={"session":"s"}', BEARER)
        assert held.events() == [event(0), command(), event(1, type_="control.accepted", cause="c-1")]


async def test_the_sender_gets_its_audit_copy_only_if_it_subscribes() -> None:
    async with serving(token=TOKEN) as relay:
        await target(relay)
        operator = await sender(relay)
        operator.say(command(id_="c-1"))
        await settle()
        assert operator.raw() == []
        await operator.ask({"type": "subscribe", "id": "a", "filter": {"type": "control.*"}})
        operator.say(command(id_="c-2"))
        await settle()
        assert operator.raw() == [command(id_="c-2")]


@pytest.mark.parametrize("from_", [{}, {"from": "all"}])
async def test_a_target_that_subscribes_gets_it_once(from_: dict[str, object]) -> None:
    async with serving(token=TOKEN) as relay:
        worker = await target(relay, role="both")
        await worker.ask({"type": "subscribe", "id": "a", "filter": {"session": "s"}, **from_})
        await worker.ask({"type": "subscribe", "id": "b", "filter": {"type": "control.*"}})
        operator = await sender(relay)
        await operator.ask(command(id_="c-1"), event(None, "s", "attention.routed"), command(id_="c-2"))
        assert worker.raw() == [command(id_="c-1"), event(None, "s", "attention.routed"), command(id_="c-2")]


async def test_a_ceiling_does_not_touch_what_the_target_gets() -> None:
    async with serving(token=TOKEN) as relay:
        worker = await target(relay, role="both")
        await worker.ask({"type": "subscribe", "id": "a", "capture": "none"})
        watcher = await relay.stream("?capture=none", BEARER)
        operator = await sender(relay)
        full = command(capture="full", data={"secret": 1})
        await operator.ask(full)
        assert worker.raw() == [full]
        (seen,) = watcher.messages()
        assert (seen.json["capture"], "data" in seen.json) == ("none", False)


class TestRefusals:
    async def test_no_route(self) -> None:
        async with serving(token=TOKEN) as relay:
            await relay.post(event(0), headers=BEARER)
            observer = await sender(relay, "consumer")
            await observer.ask(event(1))
            operator = await sender(relay)
            # There is history, and a consumer that sent an Event of it; neither is a claim.
            assert refusal(await operator.ask(command())) == ("no-route", "c-1")

    async def test_ambiguous(self) -> None:
        async with serving(token=TOKEN) as relay:
            workers = [await target(relay), await target(relay)]
            operator = await sender(relay)
            assert refusal(await operator.ask(command())) == ("ambiguous", "c-1")
            assert [worker.raw() for worker in workers] == [[], []]
            workers[0].wire.feed_end()
            await settle()
            assert await operator.ask(command()) == []
            assert workers[1].raw() == [command()]

    @pytest.mark.parametrize(
        "capabilities",
        [
            {},
            {"control": {}},
            {"control": {"accepts": []}},
            {"control": {"accepts": ["control.pause"]}},
            {"control": {"accepts": ["control.*"]}},
            {"control": {"accepts": "control.cancel"}},
            {"control": {"accepts": ["control.cancel", 7]}},
            {"control": {"accepts": {"control.cancel": True}}},
            {"control": ["control.cancel"]},
            {"control": None},
        ],
    )
    async def test_unsupported(self, capabilities: dict[str, Any]) -> None:
        async with serving(token=TOKEN) as relay:
            worker = await target(relay, capabilities=capabilities)
            operator = await sender(relay)
            assert refusal(await operator.ask(command())) == ("unsupported", "c-1")
            assert worker.raw() == []

    async def test_a_refused_command_is_in_no_history_and_seen_by_nobody(self) -> None:
        async with serving(token=TOKEN) as relay:
            worker = await target(relay, capabilities={})
            watcher = await relay.stream("", BEARER)
            operator = await sender(relay)
            await operator.ask({"type": "subscribe", "id": "a"})
            for session in ("s", "nowhere"):
                assert len(await operator.ask(command(session))) == 1
            assert watcher.events() == []
            assert worker.raw() == []
            assert (await relay.stream("?from=all&live=0", BEARER)).events() == [event(0)]

    async def test_a_connection_survives_them(self) -> None:
        async with serving(token=TOKEN) as relay:
            operator = await sender(relay)
            for number in range(3):
                assert refusal(await operator.ask(command(id_=f"c-{number}"))) == ("no-route", f"c-{number}")
            worker = await target(relay)
            assert await operator.ask(command()) == []
            assert worker.raw() == [command()]


class TestClaims:
    async def test_a_claim_lasts_as_long_as_its_connection_and_no_longer(self) -> None:
        async with serving(token=TOKEN) as relay:
            worker = await target(relay)
            operator = await sender(relay)
            await worker.ask(event(1, type_="session.ended"))
            assert await operator.ask(command(id_="c-1")) == []
            worker.wire.feed_end()
            await settle()
            assert refusal(await operator.ask(command(id_="c-2"))) == ("no-route", "c-2")

    async def test_a_silent_target_loses_them(self, autojump_clock: MockClock) -> None:
        async with serving(token=TOKEN) as relay:
            await target(relay)
            operator = await sender(relay)
            for _ in range(10):
                await trio.sleep(10)
                operator.say({"type": "pong", "t": 0})
            operator.raw()
            assert refusal(await operator.ask(command())) == ("no-route", "c-1")

    async def test_a_target_that_is_being_sent_away_is_none(self) -> None:
        limits = Limits(soft_limit_bytes=2_000, hard_limit_bytes=8_000, max_event_bytes=4_000)
        async with serving(limits, token=TOKEN) as relay:
            worker = await target(relay, role="both")
            worker.wire.capacity_bytes = 100
            operator = await sender(relay)
            answers: list[Any] = []
            for number in range(100):
                answers += await operator.ask(command(id_=f"c-{number}"))
                if answers:
                    break
            assert answers[0]["code"] == "no-route"
            worker.wire.capacity_bytes = None
            await settle()
            *commands, closing = [json.loads(text) for text in worker.raw()]
            assert closing["reason"] == "slow-consumer"
            assert all(found["type"] == "control.cancel" for found in commands)


class TestRepetition:
    async def test_retries_and_repeated_acknowledgements_pass_through(self) -> None:
        async with serving(token=TOKEN) as relay:
            worker = await target(relay)
            operator = await sender(relay)
            await operator.ask({"type": "subscribe", "id": "a", "filter": {"type": "control.accepted"}})
            accepted = event(1, type_="control.accepted", cause="c-1")
            for _ in range(3):
                await operator.ask(command())
                assert worker.raw() == [command()]
                await worker.ask(accepted)
                assert operator.raw() == [accepted]
            held = await relay.stream("?from=all&live=0", BEARER)
            assert held.events() == [event(0), command(), accepted]

    async def test_a_retry_after_the_target_came_back_reaches_it(self) -> None:
        async with serving(token=TOKEN) as relay:
            first = await target(relay)
            operator = await sender(relay)
            await operator.ask(command())
            first.wire.reset()
            await settle()
            assert refusal(await operator.ask(command())) == ("no-route", "c-1")
            second = await relay.greeted("emitter", "worker", ACCEPTS, headers=BEARER)
            await second.ask(event(0, epoch=1))
            assert await operator.ask(command()) == []
            assert second.raw() == [command()]


async def test_a_command_is_no_claim() -> None:
    async with serving(token=TOKEN) as relay:
        worker = await target(relay)
        operator = await relay.greeted("both", "operator", ACCEPTS, headers=BEARER)
        await operator.ask(command())
        assert worker.raw() == [command()]
        (roster,) = await operator.ask({"type": "roster", "id": "r"})
        assert [entry["agent"] for entry in roster["entries"]] == ["worker"]


async def test_a_command_overtakes_nothing_that_was_sent_before_it() -> None:
    async with serving(token=TOKEN) as relay:
        worker = await target(relay, role="both")
        await worker.ask({"type": "subscribe", "id": "a"})
        operator = await sender(relay)
        await operator.ask(
            event(None, "s", "attention.routed", id="r-1"), command(), event(None, None, "agent.idle")
        )
        assert worker.raw() == [
            event(None, "s", "attention.routed", id="r-1"),
            command(),
            event(None, None, "agent.idle"),
        ]
