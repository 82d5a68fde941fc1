"""What several tokens grant over each binding, what they pace, and what ends with them."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import trio
from trio.testing import MockClock
from websockets.frames import Frame, Opcode

from aep_relay import reload
from aep_relay.config import Auth, Config, Token
from aep_relay.hub.limits import Limits
from tests.bindings.governed import NOW, Governed, bearer, governed, token
from tests.bindings.served import JSON, NDJSON, Answer, Socket, command, event, hello, serving, settle
from tests.fakes.log import Log

ALL = ("emit", "consume", "control", "operate")
ACCEPTS = {"control": {"accepts": ["control.cancel", "control.pause"]}}


async def head_of(relay: Governed, query: str = "", **headers: str) -> int:
    stream = await relay.stream(query, headers)
    stream.read()
    assert stream.head is not None
    return stream.head.status


async def handshake(relay: Governed, secret: str) -> Answer | None:
    """Return how the upgrade was refused, None if it was not."""
    socket = await relay.socket("", bearer(secret))
    socket.heard()
    return socket.refused


def codes(messages: list[Any]) -> list[tuple[str, object]]:
    """Return the code and the cause or id of each error frame."""
    return [(m["code"], m.get("cause", m.get("id"))) for m in messages if m["type"] == "error"]


class TestGrants:
    @pytest.mark.parametrize("grant", ALL)
    async def test_each_grants_its_own_and_nothing_else(self, grant: str) -> None:
        async with governed(token("t", grant)) as relay:
            may = bearer("t")
            assert (await relay.post(event(), headers=may)).status == (202 if grant == "emit" else 403)
            assert await head_of(relay, **may) == (200 if grant == "consume" else 403)
            assert (await relay.ask("HEAD", "/stream", None, may)).status == (
                200 if grant == "consume" else 403
            )
            assert (await relay.ask("GET", "/connections", None, may)).status == (
                200 if grant == "operate" else 403
            )
            refused = await handshake(relay, "t")
            assert (refused is not None) is (grant == "operate")
            assert "sessions" in (await relay.ask("GET", "/healthz", None, may)).json

    @pytest.mark.parametrize("grant", ["emit", "consume", "control"])
    async def test_a_socket_is_refused_in_band_and_survives(self, grant: str) -> None:
        async with governed(token("t", grant), token("worker", "emit")) as relay:
            worker = await relay.greeted("emitter", "tester", ACCEPTS, headers=bearer("worker"))
            await worker.ask(event(session="theirs"))
            socket = await relay.greeted(headers=bearer("t"))
            answers = await socket.ask(
                event(),
                {"type": "subscribe", "id": "sub"},
                {"type": "roster", "id": "r"},
                command("theirs"),
                {"type": "ping", "t": 1},
            )
            refused = {"emit": "s-0-0", "consume": "sub", "control": "c-1"}
            expected = [("unauthorized", id_) for name, id_ in refused.items() if name != grant]
            if grant != "consume":
                expected.insert(expected.index(("unauthorized", "sub")) + 1, ("unauthorized", "r"))
            assert codes(answers) == expected
            assert answers[-1] == {"type": "pong", "t": 1}
            assert [json.loads(text)["id"] for text in worker.raw()] == (
                ["c-1"] if grant == "control" else []
            )

    @pytest.mark.parametrize("headers", [{}, bearer("x"), bearer("T"), bearer(""), bearer("t\xfc")])
    async def test_who_shows_none_of_them_is_nobody(self, headers: dict[str, str]) -> None:
        async with governed(token("t", *ALL), token("u", "emit")) as relay:
            assert (await relay.post(event(), headers=headers)).refusal == (401, "unauthorized")
            assert await head_of(relay, **headers) == 401

    async def test_all_work_beside_the_simple_one(self) -> None:
        config = Config(auth=Auth(token="simple"))
        async with governed(token("t", "emit"), config=config) as relay:
            for secret, status in (("simple", 200), ("t", 403), ("u", 401)):
                for query, headers in (("", bearer(secret)), (f"?access_token={secret}", {})):
                    assert (await relay.ask("GET", "/connections" + query, None, headers)).status == status

    async def test_connections_and_logs_name_the_token(self, log: Log) -> None:
        async with governed(token("watcher", "consume", "operate"), token("worker", "emit")) as relay:
            await relay.stream("", bearer("watcher"))
            await relay.greeted("emitter", headers=bearer("worker"))
            listed = (await relay.ask("GET", "/connections", None, bearer("watcher"))).json["connections"]
            assert [item["token_name"] for item in listed] == ["watcher", "worker"]
            opened = log.records("connection opened")
            assert [record["token_name"] for record in opened] == ["watcher", "worker"]

    async def test_without_tokens_there_is_no_name(self, log: Log) -> None:
        async with serving() as relay:
            await relay.stream()
            (listed,) = (await relay.ask("GET", "/connections")).json["connections"]
            assert listed["token_name"] is None
            assert listed["card"] is None
            assert "token_name" not in log.records("connection opened")[0]


class TestNarrowing:
    async def test_events_of_another_agent_are_refused_over_http(self) -> None:
        async with governed(token("t", "emit", agents=("a-*",))) as relay:
            assert (await relay.post(event(agent="a-1"), headers=bearer("t"))).status == 202
            assert (await relay.post(event(agent="b-1"), headers=bearer("t"))).refusal == (
                403,
                "unauthorized",
            )
            batch = [event(seq, agent=agent) for seq, agent in enumerate(["a-1", "a-2", "b-1", "a-3"])]
            refused = await relay.post(*batch, headers=bearer("t"))
            assert refused.refusal == (403, "unauthorized")
            assert "Event 2 of the batch" in refused.json["detail"]
            assert relay.relay.stats.received_events == 1

    async def test_events_of_another_session_are_refused_over_websocket(self) -> None:
        async with governed(token("t", "emit", "consume", sessions=("mine-*",))) as relay:
            socket = await relay.greeted(headers=bearer("t"))
            await socket.ask({"type": "subscribe", "id": "sub"})
            answers = await socket.ask(
                event(session="mine-1"), event(session="theirs", id="e"), event(1, "mine-1")
            )
            assert codes(answers) == [("unauthorized", "e")]
            assert [m["session"] for m in answers if m["type"] != "error"] == ["mine-1", "mine-1"]
            assert len(relay.relay.claims) == 1

    async def test_what_comes_together_is_refused_one_by_one(self) -> None:
        """Though the Events could be taken in as one: their session is claimed, or need not be."""
        async with governed(token("t", "emit", agents=("a",)), token("w", "consume")) as relay:
            emitter = await relay.greeted("emitter", "a", headers=bearer("t"))
            consumer = await relay.greeted("consumer", headers=bearer("w"))
            assert await emitter.ask(event(0, agent="a")) == []
            said = [event(seq, agent=agent, id=f"e{seq}") for seq, agent in enumerate("aaabbbaa", 1)]
            assert codes(await emitter.ask(*said)) == [("unauthorized", f"e{seq}") for seq in (4, 5, 6)]
            others = [event(seq, session="s-2", id=f"e{seq}") for seq in range(4)]
            assert codes(await consumer.ask(*others)) == [("unauthorized", f"e{seq}") for seq in range(4)]
            assert relay.relay.stats.received_events == 6

    async def test_a_consumer_sees_what_it_may_and_no_more_content(self) -> None:
        narrow = token("t", "consume", agents=("a",), capture="metadata")
        async with governed(narrow, token("all", "emit")) as relay:
            notes = [
                event(seq, "s", "x.acme.note.written", agent=agent, capture="full", data={"text": "secret"})
                for seq, agent in enumerate("ab")
            ]
            await relay.post(*notes, headers=bearer("all"))
            stream = await relay.stream("?from=all&live=0&capture=full", bearer("t"))
            (only,) = stream.events()
            assert (json.loads(only)["seq"], json.loads(only)["capture"]) == (0, "metadata")
            assert b"secret" not in only
            socket = await relay.greeted("consumer", headers=bearer("t"))
            _, seen = await socket.ask({"type": "subscribe", "id": "sub", "from": "all", "capture": "full"})
            assert (seen["seq"], seen["capture"]) == (0, "metadata")
            assert (await relay.ask("GET", "/connections", None, bearer("t"))).status == 403

    async def test_commands_are_narrowed_by_type_session_and_sender(self) -> None:
        narrow = token("t", "control", commands=("control.cancel",), sessions=("s",), agents=("operator",))
        async with governed(narrow, token("w", "emit")) as relay:
            worker = await relay.greeted("emitter", "w", ACCEPTS, headers=bearer("w"))
            await worker.ask(event(0, "s"), event(0, "other"))
            sender = await relay.greeted("consumer", headers=bearer("t"))
            for wrong in (
                command("s", "control.pause"),
                command("other"),
                event(None, "s", "control.cancel", id="c-1", agent="tester"),
            ):
                assert codes(await sender.ask(wrong)) == [("unauthorized", "c-1")]
            assert await sender.ask(command("s")) == []
            assert len(worker.raw()) == 1

    async def test_a_roster_holds_whom_one_may_know(self) -> None:
        async with governed(token("t", "consume", agents=("a",)), token("w", "emit")) as relay:
            for agent in ("a", "b"):
                worker = await relay.greeted("emitter", agent, headers=bearer("w"))
                await worker.ask(event(0, f"of-{agent}", agent=agent))
            watcher = await relay.greeted("consumer", headers=bearer("t"))
            (roster,) = await watcher.ask({"type": "roster", "id": "r"})
            assert [entry["session"] for entry in roster["entries"]] == ["of-a"]

    @pytest.mark.parametrize("role", ["emitter", "both", "consumer"])
    async def test_an_emitter_appears_as_whom_it_may(self, role: str) -> None:
        async with governed(token("t", "emit", "consume", agents=("a",))) as relay:
            assert (await relay.greeted(role, "a", headers=bearer("t"))).closed is None
            socket = await relay.socket("", bearer("t"))
            answers = await socket.ask(hello(role, "b"))
            if role == "consumer":
                assert answers[0]["type"] == "hello"
                return
            (error,) = answers
            assert (error["type"], error["code"]) == ("error", "unauthorized")
            assert socket.closed == 1008
            socket.wire.feed_end()
            await settle()
            assert len(relay.relay.peers) == 1


class TestRate:
    async def test_a_post_too_many_is_told_when_to_come_again(self, mock_clock: MockClock) -> None:
        async with governed(token("t", "emit", events_per_second=0.5), token("u", "emit")) as relay:
            assert (await relay.post(event(0), headers=bearer("t"))).status == 202
            refused = await relay.post(event(1), headers=bearer("t"))
            assert refused.refusal == (429, "limit-exceeded")
            assert refused.headers["retry-after"] == "2"
            assert "events_per_second" in refused.json["detail"]
            assert relay.relay.stats.received_events == 1
            assert (await relay.post(event(1), headers=bearer("u"))).status == 202
            mock_clock.jump(1.9)
            assert (await relay.post(event(2), headers=bearer("t"))).headers["retry-after"] == "1"
            mock_clock.jump(0.1)
            assert (await relay.post(event(2), headers=bearer("t"))).status == 202

    async def test_any_batch_can_be_sent_some_time(self, mock_clock: MockClock) -> None:
        async with governed(token("t", "emit", events_per_second=10)) as relay:
            batch = [event(seq) for seq in range(105)]
            assert (await relay.post(*batch, headers=bearer("t"))).json == {"accepted": 105}
            refused = await relay.post(event(0, "other"), headers=bearer("t"))
            assert (refused.status, refused.headers["retry-after"]) == (429, "10")
            mock_clock.jump(9.6)
            assert (await relay.post(*batch, headers=bearer("t"))).status == 202

    async def test_what_is_not_accepted_costs_nothing(self, mock_clock: MockClock) -> None:
        async with governed(token("t", "emit", events_per_second=1)) as relay:
            for body in (b"{}", command(), event() + b"\n" + b"{}"):
                assert (await relay.ask("POST", "/events", body, {**NDJSON, **bearer("t")})).status in (
                    400,
                    403,
                )
            assert (await relay.post(event(), headers=bearer("t"))).status == 202

    async def test_a_refused_upload_is_not_waited_for(self, mock_clock: MockClock) -> None:
        async with governed(token("t", "emit", events_per_second=1)) as relay:
            await relay.post(event(), headers=bearer("t"))
            wire = relay.connect()
            head = {**JSON, **bearer("t"), "Content-Length": "1000000"}
            lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
            wire.feed(f"POST /events HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n".encode())
            await settle()
            assert wire.take_sent().startswith(b"HTTP/1.1 429 ")

    async def test_a_socket_is_read_more_slowly_and_loses_nothing(self, mock_clock: MockClock) -> None:
        async with governed(token("t", "emit", events_per_second=2), token("c", "consume")) as relay:
            watcher = await relay.greeted("consumer", headers=bearer("c"))
            await watcher.ask({"type": "subscribe", "id": "sub"})
            emitter = await relay.greeted("emitter", headers=bearer("t"))
            seqs: list[int] = []

            def note() -> int:
                new = [json.loads(text)["seq"] for text in watcher.raw()]
                seqs.extend(new)
                return len(new)

            emitter.say(*(event(seq) for seq in range(7)), {"type": "ping", "t": 7})
            await settle()
            assert note() == 3  # two at once, and one before the pause
            counts = []
            for _ in range(6):
                mock_clock.jump(0.5)
                await settle()
                counts.append(note())
            assert counts == [1, 1, 1, 1, 0, 0]
            assert seqs == list(range(7))
            assert emitter.heard() == [{"type": "pong", "t": 7}]
            assert emitter.closed is None

    async def test_all_sockets_of_a_token_share_its_rate(self, mock_clock: MockClock) -> None:
        async with governed(token("t", "emit", events_per_second=1)) as relay:
            sockets = [await relay.greeted("emitter", headers=bearer("t")) for _ in range(3)]
            for number, socket in enumerate(sockets):
                socket.say(*(event(seq, f"s{number}") for seq in range(4)))
            await settle()
            for _ in range(14):
                mock_clock.jump(1.0)
                await settle()
                assert relay.relay.stats.received_events <= mock_clock.current_time() + 1 + len(sockets)
            assert relay.relay.stats.received_events == 12

    async def test_a_paced_socket_is_not_taken_for_a_silent_one(self, mock_clock: MockClock) -> None:
        limits = Limits(ping_interval_seconds=3, ping_timeout_seconds=9)
        config = Config(limits=limits)
        async with governed(token("t", "emit", events_per_second=0.02), config=config) as relay:
            emitter = await relay.greeted("emitter", headers=bearer("t"))
            emitter.say(event(0), event(1), event(2))
            await settle()
            for _ in range(49):
                mock_clock.jump(1.0)
                await settle()
            assert relay.relay.stats.received_events == 2
            assert {message["type"] for message in emitter.heard()} == {"ping"}
            for _ in range(3):
                mock_clock.jump(1.0)
                await settle()
            assert relay.relay.stats.received_events == 3
            assert emitter.closed is None
            for _ in range(70):
                mock_clock.jump(1.0)
                await settle()
            assert emitter.closed == 1008

    @pytest.mark.parametrize("how", ["closed", "reset"])
    async def test_a_paced_socket_ends_at_once(self, how: str, mock_clock: MockClock) -> None:
        async with governed(token("t", "emit", events_per_second=0.001)) as relay:
            emitter = await relay.greeted("emitter", headers=bearer("t"))
            emitter.say(*(event(seq) for seq in range(5)))
            await settle()
            (peer,) = relay.relay.peers.values()
            if how == "closed":
                relay.relay.close(peer, "test", 1001)
                await settle()
                assert emitter.closed == 1001
                emitter.wire.feed_end()
            else:
                emitter.wire.reset()
                for _ in range(40):  # the next heartbeat notices
                    mock_clock.jump(1.0)
                    await settle()
            await settle()
            assert relay.relay.peers == {}
            assert relay.service.open_connections == 0

    async def test_a_ping_of_the_transport_is_answered_before_a_pause(self, mock_clock: MockClock) -> None:
        async with governed(token("t", "emit", events_per_second=0.001)) as relay:
            emitter = await relay.greeted("emitter", headers=bearer("t"))
            pong = Frame(Opcode.PONG, b"p").serialize(mask=False)
            emitter.wire.take_sent()
            ping = Frame(Opcode.PING, b"p").serialize(mask=True)
            texts = b"".join(Frame(Opcode.TEXT, event(seq)).serialize(mask=True) for seq in range(3))
            emitter.wire.feed(ping + texts)
            await settle()
            assert emitter.wire.take_sent() == pong


class TestConnections:
    async def test_a_stream_or_socket_too_many_is_refused_before_it_begins(self) -> None:
        async with governed(token("t", "consume", max_connections=2), token("u", "consume")) as relay:
            stream = await relay.stream("", bearer("t"))
            socket = await relay.socket("", bearer("t"))
            for answer in (
                await handshake(relay, "t"),
                await relay.ask("GET", "/stream", None, bearer("t")),
            ):
                assert answer is not None
                assert answer.refusal == (429, "limit-exceeded")
                assert "max_connections" in answer.json["detail"]
            assert await handshake(relay, "u") is None
            assert (await relay.ask("GET", "/healthz", None, bearer("t"))).status == 200
            for wire in (stream.wire, socket.wire):
                wire.feed_end()
                await settle()
                assert await head_of(relay, **bearer("t")) == 200
                assert (await relay.ask("GET", "/stream", None, bearer("t"))).status == 429

    async def test_a_handshake_that_fails_takes_no_place(self) -> None:
        async with governed(token("t", "consume", max_connections=1)) as relay:
            upgrade = {**bearer("t"), "Connection": "Upgrade", "Upgrade": "websocket"}
            assert (await relay.ask("GET", "/socket", None, upgrade)).status == 400
            assert (await relay.ask("GET", "/stream?filter=x", None, bearer("t"))).status == 400
            assert await head_of(relay, **bearer("t")) == 200


class Ends:
    """A stream and a socket of one token, and how they ended."""

    def __init__(self, relay: Governed, secret: str) -> None:
        self.relay, self.secret = relay, secret

    async def begin(self) -> None:
        self.stream = await self.relay.stream("", bearer(self.secret))
        self.stream.read()
        self.socket: Socket = await self.relay.greeted("consumer", headers=bearer(self.secret))

    async def reasons(self) -> tuple[str | None, str | None]:
        await settle()
        comments = [text for text in self.stream.comments() if text.startswith("closing")]
        closing = [message["reason"] for message in self.socket.heard() if message["type"] == "closing"]
        assert self.stream.ended is bool(comments)
        assert self.socket.closed == (1008 if closing else None)
        return next(iter(comments), None), next(iter(closing), None)


def ended(reason: str) -> tuple[str, str]:
    return f"closing {reason}", reason


class TestEnds:
    async def test_a_token_expires(self, mock_clock: MockClock) -> None:
        soon = datetime.fromtimestamp(NOW, UTC) + timedelta(seconds=10)
        async with governed(token("t", *ALL, expires=soon), token("u", *ALL)) as relay:
            relay.nursery.start_soon(reload.watch_expiry, relay.service)
            mine, theirs = Ends(relay, "t"), Ends(relay, "u")
            await mine.begin()
            await theirs.begin()
            for relay.now in (NOW + 9.9, NOW + 10):
                assert await mine.reasons() == (None, None)
                mock_clock.jump(1.0)
                await settle()
            assert await mine.reasons() == ended("token-expired")
            assert await theirs.reasons() == (None, None)
            answer = await relay.post(event(), headers=bearer("t"))
            assert answer.refusal == (401, "unauthorized")
            assert "expired" in answer.json["detail"]
            assert (await relay.post(event(), headers=bearer("u"))).status == 202
            assert relay.relay.stats.disconnects == {"token-expired": 2}

    OLD = token("t", "emit", "consume", agents=("a",), events_per_second=5.0)

    @pytest.mark.parametrize(
        ("new", "reason"),
        [
            ([], "token-removed"),
            ([token("u", "consume")], "token-removed"),
            ([replace(OLD, name="u")], "token-changed"),
            ([replace(OLD, sha256="ab" * 32)], "token-changed"),
            ([replace(OLD, grants=("consume",), events_per_second=None)], "token-changed"),
            ([replace(OLD, agents=None)], "token-changed"),
            ([replace(OLD, agents=("a", "b"))], "token-changed"),
            ([replace(OLD, sessions=("s",))], "token-changed"),
            ([replace(OLD, capture="none")], "token-changed"),
            ([OLD], None),
            ([token("u", "emit"), OLD], None),
            ([replace(OLD, file="elsewhere")], None),
            ([replace(OLD, expires=datetime(2100, 1, 1, tzinfo=UTC))], None),
            ([replace(OLD, events_per_second=1.0)], None),
            ([replace(OLD, events_per_second=None)], None),
            ([replace(OLD, max_connections=1)], None),
        ],
    )
    async def test_tokens_are_replaced(self, new: list[Token], reason: str | None) -> None:
        async with governed(self.OLD, token("other", "consume")) as relay:
            mine, theirs = Ends(relay, "t"), Ends(relay, "other")
            await mine.begin()
            await theirs.begin()
            reasons = await relay.replace(*new, token("other", "consume"))
            assert reasons == ([] if reason is None else [reason] * 2)
            assert await mine.reasons() == ((None, None) if reason is None else ended(reason))
            assert await theirs.reasons() == (None, None)
            known = any(item.sha256 == self.OLD.sha256 for item in new)
            answer = await relay.post(event(agent="a"), headers=bearer("t"))
            assert (answer.status == 401) is not known

    async def test_what_changes_in_place_holds_at_once(self) -> None:
        old = token("t", "consume", "emit")
        async with governed(old) as relay:
            streams = [await relay.stream("", bearer("t")) for _ in range(2)]
            assert await relay.replace(replace(old, max_connections=2, events_per_second=1.0)) == []
            assert await head_of(relay, **bearer("t")) == 429
            assert (await relay.post(event(0), headers=bearer("t"))).status == 202
            assert (await relay.post(event(1), headers=bearer("t"))).status == 429
            assert await relay.replace(replace(old, expires=datetime.fromtimestamp(NOW - 1, UTC))) == []
            assert (await relay.post(event(1), headers=bearer("t"))).status == 401
            assert {peer.grants.events_per_second for peer in relay.relay.peers.values() if peer.grants} == {
                None
            }
            assert not any(stream.ended for stream in streams)

    async def test_a_relay_that_begins_to_want_tokens(self) -> None:
        async with governed() as relay:
            mine = Ends(relay, "anything")
            await mine.begin()
            assert await relay.replace(token("t", "consume")) == ["token-required"] * 2
            assert await mine.reasons() == ended("token-required")
            assert (await relay.post(event())).status == 401

    async def test_a_relay_that_wants_none_any_more(self) -> None:
        async with governed(token("t", "consume")) as relay:
            mine = Ends(relay, "t")
            await mine.begin()
            assert await relay.replace() == ["token-removed"] * 2
            assert await mine.reasons() == ended("token-removed")
            assert (await relay.post(event())).status == 202

    async def test_the_simple_token_is_replaced_too(self) -> None:
        async with governed(config=Config(auth=Auth(token="old"))) as relay:
            mine = Ends(relay, "old")
            await mine.begin()
            assert await relay.replace(token="old", query_token=False) == []
            assert await mine.reasons() == (None, None)
            assert (await relay.ask("GET", "/connections?access_token=old")).status == 401
            assert await relay.replace(token="new") == ["token-changed"] * 2
            assert await mine.reasons() == ended("token-changed")
            assert (await relay.ask("GET", "/connections", None, bearer("new"))).status == 200

    async def test_a_connection_in_the_middle_of_a_replay_ends_too(self) -> None:
        async with governed(token("t", "consume", "emit")) as relay:
            await relay.post(
                *(event(seq, data={"text": "x" * 1000}) for seq in range(100)), headers=bearer("t")
            )
            stream = await relay.stream("?from=all", bearer("t"), capacity_bytes=5000)
            assert await relay.replace(token("u", "consume")) == ["token-removed"]
            stream.wire.capacity_bytes = None
            await settle()
            assert stream.comments()[-1] == "closing token-removed"
            assert stream.ended

    async def test_many_connections_end_in_slices(self) -> None:
        async with governed(token("t", "consume")) as relay:
            streams = [await relay.stream("", bearer("t")) for _ in range(150)]
            with trio.fail_after(60):
                assert len(await relay.replace()) == 150
            await settle()
            for stream in streams:
                stream.read()
                assert stream.ended
