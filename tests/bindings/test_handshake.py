from __future__ import annotations

import json

import pytest
from websockets.frames import Frame, Opcode

from tests.bindings.served import Socket, hello, request, serving, settle, take_answer


class TestHandshake:
    async def test_bytes_behind_it_are_not_lost(self) -> None:
        async with serving() as relay:
            socket = Socket(relay.connect())
            handshake = socket.protocol.connect()
            handshake.path = "/socket"
            socket.protocol.send_request(handshake)
            (head,) = socket.protocol.data_to_send()
            text = json.dumps(hello()).encode()
            socket.wire.feed(head + Frame(Opcode.TEXT, text).serialize(mask=True))
            await settle()
            assert [message["type"] for message in socket.heard()] == ["hello"]

    @pytest.mark.parametrize(
        ("headers", "status"),
        [
            ({"Sec-WebSocket-Version": "12"}, 426),
            ({"Sec-WebSocket-Key": "short"}, 400),
            ({"Sec-WebSocket-Key": "", "Sec-WebSocket-Version": ""}, 426),
            ({"X": "y" * 9000}, 400),
        ],
    )
    async def test_one_that_is_malformed_is_refused(self, headers: dict[str, str], status: int) -> None:
        async with serving() as relay:
            good = {
                "Upgrade": "websocket",
                "Connection": "Upgrade",
                "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
                "Sec-WebSocket-Version": "13",
            }
            answer = await relay.ask("GET", "/socket", None, {**good, **headers})
            assert answer.refusal[0] == status
            if status == 426:
                assert answer.headers["sec-websocket-version"] == "13"
            assert relay.relay.peers == {}

    @pytest.mark.parametrize("missing", ["Sec-WebSocket-Key", "Sec-WebSocket-Version"])
    async def test_one_that_lacks_a_header_is_refused(self, missing: str) -> None:
        async with serving() as relay:
            headers = {
                "Upgrade": "websocket",
                "Connection": "keep-alive, Upgrade",
                "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
                "Sec-WebSocket-Version": "13",
            }
            del headers[missing]
            assert (await relay.ask("GET", "/socket", None, headers)).refusal == (400, "bad-handshake")

    async def test_behind_another_request_on_the_same_connection(self) -> None:
        async with serving() as relay:
            wire = relay.connect()
            wire.feed(request("GET", "/healthz"))
            await settle()
            assert take_answer(wire.take_sent())[0].status == 200
            socket = Socket(wire)
            socket.shake_hands("", {})
            await settle()
            assert (await socket.ask(hello()))[0]["type"] == "hello"

    async def test_neither_extension_nor_subprotocol_is_agreed_on(self) -> None:
        async with serving() as relay:
            offer = {"Sec-WebSocket-Extensions": "permessage-deflate", "Sec-WebSocket-Protocol": "aep"}
            socket = await relay.socket("", offer)
            head = socket.wire.take_sent().lower()
            assert head.startswith(b"http/1.1 101 ")
            assert b"sec-websocket-extensions" not in head
            assert b"sec-websocket-protocol" not in head
