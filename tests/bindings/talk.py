"""What tests say over a WebSocket and hear again."""

from __future__ import annotations

from typing import Any

from tests.bindings.served import Socket

PING = {"type": "ping", "t": 7}
PONG = {"type": "pong", "t": 7}


async def alive(socket: Socket) -> bool:
    """Say whether the connection still works."""
    return await socket.ask(PING) == [PONG] and socket.closed is None


def errors(messages: list[Any]) -> list[tuple[str, str | None]]:
    """Return code and cause of each message, which all have to be errors."""
    for message in messages:
        assert message["type"] == "error", message
        assert isinstance(message["detail"], str)
        assert message["detail"]
    return [(message["code"], message.get("cause")) for message in messages]


def subscribe(id_: object = "a", **members: object) -> dict[str, object]:
    return {"type": "subscribe", "id": id_, **{name.rstrip("_"): value for name, value in members.items()}}
