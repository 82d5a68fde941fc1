"""Whether the other side of a WebSocket is still there (AEP-0003 §3.5.5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from aep_relay.protocol import frames
from aep_relay.upstream.errors import UNREACHABLE, Down

if TYPE_CHECKING:
    from typing import NoReturn

    from aep_relay.upstream.socket import Socket


class Liveness:
    """Pings and their answers on one connection."""

    def __init__(self, socket: Socket, *, interval_seconds: float, answer_seconds: float) -> None:
        self._socket = socket
        self._interval_seconds = interval_seconds
        self._answer_seconds = answer_seconds
        self._pinged_at: float | None = None

    @property
    def is_asking(self) -> bool:
        """Whether a ping has not been answered yet."""
        return self._pinged_at is not None

    async def ask(self) -> None:
        """Send a ping. Raises ``Down``."""
        self._pinged_at = trio.current_time()
        await self._socket.send([frames.ping(int(self._pinged_at * 1000))])

    async def frame(self, frame: dict[str, object]) -> None:
        """Note a pong, answer a ping. Raises ``Down``."""
        if frame["type"] == "pong":
            self._pinged_at = None
        elif frame["type"] == "ping":
            await self._socket.send([frames.pong(frame.get("t"))])

    async def watch(self) -> NoReturn:
        """Ask at intervals; raises ``Down`` when there is no answer."""
        while True:
            await trio.sleep(min(self._answer_seconds, self._interval_seconds) / 2)
            now = trio.current_time()
            if self._pinged_at is None:
                await self.ask()
            elif now - max(self._pinged_at, self._socket.heard_at) >= self._answer_seconds:
                raise Down(UNREACHABLE, f"silent for {self._answer_seconds:g} s")
