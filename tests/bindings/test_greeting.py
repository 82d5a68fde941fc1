from __future__ import annotations

from typing import Any

import pytest

from aep_relay.hub.limits import Limits
from tests.bindings.served import event, hello, serving
from tests.bindings.talk import errors


class TestHello:
    async def test_it_is_answered_with_one_version_and_what_discovery_says(self) -> None:
        async with serving(Limits(buffer_events=55)) as relay:
            socket = await relay.socket()
            (answer,) = await socket.ask({**hello(), "versions": ["2.0", "0.1", "0.0"]})
            assert answer["type"] == "hello"
            assert answer["versions"] == ["0.1"]
            assert answer["role"] == "both"
            assert answer["identity"] == {"agent": "aep-relay", "instance": relay.relay.instance}
            assert answer["capabilities"] == (await relay.ask("GET", "/events")).json["capabilities"]
            assert answer["capabilities"]["replay"] == {"buffer": 55, "all": True}

    @pytest.mark.parametrize(
        "first",
        [
            {"type": "subscribe", "id": "a"},
            {"type": "ping", "t": 1},
            {"type": "unknown"},
            {"type": "roster", "id": "r"},
            {},
            event(),
            b"[]",
            b"nonsense",
            b'{"type":"hello","type":"hello"}',
            {**hello(), "role": "observer"},
            {**hello(), "role": None},
            {**hello(), "versions": "0.1"},
            {**hello(), "versions": [0.1]},
            {**hello(), "identity": {}},
            {**hello(), "identity": {"agent": ""}},
            {**hello(), "identity": []},
            {**hello(), "capabilities": "all"},
        ],
    )
    async def test_anything_else_first_is_refused(self, first: Any) -> None:
        async with serving() as relay:
            socket = await relay.socket()
            assert errors(await socket.ask(first)) == [("hello-required", None)]
            assert socket.closed == 1002
            assert relay.relay.stats.received_events == 0

    @pytest.mark.parametrize("versions", [[], ["0.2"], ["1.0", "2.0"], ["0.10"], ["2.0"] * 5_000])
    async def test_without_a_common_version_it_is_refused(self, versions: list[str]) -> None:
        async with serving() as relay:
            socket = await relay.socket()
            answers = await socket.ask({**hello(), "versions": versions})
            assert errors(answers) == [("version-unsupported", None)]
            assert answers[0]["versions"] == ["0.1"]
            assert socket.closed == 1002

    async def test_a_consumer_needs_no_name(self) -> None:
        async with serving() as relay:
            socket = await relay.socket()
            assert (await socket.ask({"type": "hello", "versions": ["0.1"], "role": "consumer"}))[0][
                "type"
            ] == "hello"

    async def test_a_second_one_changes_nothing(self) -> None:
        async with serving() as relay:
            socket = await relay.greeted("consumer", "one")
            assert await socket.ask(hello("emitter", "two"), {"type": "roster", "id": "r"}) == [
                {"type": "roster", "id": "r", "entries": []}
            ]

    async def test_capabilities_are_kept_verbatim_and_gate_nothing(self) -> None:
        odd = {
            "control": {
                "accepts": ["control.cancel"],
                "ack_window_ms": 10**30,
                "x": [None, 1.5, {"y": "\N{SNOWMAN}"}],
            },
            "emits": {"not": "a list"},
            "capture": 7,
            "no-such-capability": {"a": []},
        }
        async with serving() as relay:
            socket = await relay.greeted("both", "worker", odd)
            await socket.ask(event(0, "s-1"))
            (roster,) = await socket.ask({"type": "roster", "id": "r"})
            assert roster["entries"] == [
                {
                    "session": "s-1",
                    "agent": "worker",
                    "instance": "worker/1",
                    "control": odd["control"],
                    "emits": odd["emits"],
                }
            ]

    async def test_unknown_capabilities_are_ignored_whatever_they_hold(self) -> None:
        text = (
            b'{"type":"hello","versions":["0.1"],"role":"both","new":1e999,"identity":{"agent":"a","new":1e999},'
            b'"capabilities":{"new":"\\ud800","deep":%b,"control":{"accepts":["control.cancel"],"new":[1e999]}}}'
        ) % (b"[" * 5000 + b"]" * 5000)
        async with serving() as relay:
            socket = await relay.socket()
            assert [answer["type"] for answer in await socket.ask(text)] == ["hello"]
            await socket.ask(event(0, "s-1"))
            (roster,) = await socket.ask({"type": "roster", "id": "r"})
            control = {"accepts": ["control.cancel"]}
            assert roster["entries"] == [{"session": "s-1", "agent": "a", "control": control}]
