"""The connection over which a link tells who feeds this relay, and is told that it would close a circle.

It subscribes to nothing and emits nothing, so that any upstream takes it. Invariant: a peer that does not know the
announcement ignores it, and is asked for nothing.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

import msgspec
import trio

from aep_relay.hub import feeders
from aep_relay.protocol import frames
from aep_relay.protocol.errors import ProtocolError
from aep_relay.transport.turn import Turn
from aep_relay.upstream.announcing import announced, hello, instance
from aep_relay.upstream.errors import LOOP, UNREACHABLE, Down

if TYPE_CHECKING:
    from aep_relay.hub.feeders import Announcement
    from aep_relay.upstream.push import PushLink
    from aep_relay.upstream.socket import Socket


MAX_ANNOUNCED_BYTES: Final = 16 * 1024
"""What a hello may hold of who feeds whom."""


async def open_control(link: PushLink) -> Control:
    """Connect, announce, and return the connection once the upstream has found nothing against it. Raises ``Down``."""
    own = link.relay.feeders.announcement(link.id, named=True)
    if len(msgspec.json.encode(own)) > MAX_ANNOUNCED_BYTES:
        # A hello is kept as long as its connection lasts, so it has to be short. The rest follows.
        own["fed_by"] = {link.relay.instance: []}
    socket, said = await link.open(hello(link.relay.instance, own))
    control = Control(link, socket, announced(said, link.id), own)
    control.instance = instance(said)
    try:
        with trio.fail_after(link.upstream.answer_timeout_seconds):
            await control.settle()
    except trio.TooSlowError:
        await socket.close(1000, "no-answer")
        raise Down(UNREACHABLE, "no answer to a ping") from None
    except BaseException as error:
        await socket.close(1008, LOOP if isinstance(error, Down) and error.reason == LOOP else "link-down")
        raise
    return control


class Control:
    """An open control connection to a relay that has announced itself, or to a foreign one."""

    def __init__(
        self, link: PushLink, socket: Socket, other: Announcement | None, told: dict[str, object]
    ) -> None:
        self._link = link
        self._socket = socket
        self._other = other
        self._told = told
        """What was announced last."""
        self.instance: object = None
        """Names this run of the upstream, where it says so."""
        self._changed = trio.Event()
        self._liveness = link.liveness(socket)

    async def settle(self) -> None:
        """Wait until the upstream has judged the announcement. Raises ``Down``."""
        if self._other is None:
            return
        if self._circle() is not None:
            # It is for who is fed to break a circle, and perhaps another link of it is broken already.
            with trio.move_on_after(feeders.SECOND_LOOK_SECONDS * (1 + random.random())):  # noqa: S311  # no secret
                while True:
                    await self._receive_some()
            self._check()
        await self._announce()
        await self._liveness.ask()
        while self._liveness.is_asking:
            await self._receive_some()

    def _circle(self) -> tuple[str, ...] | None:
        """Return the way by which the upstream feeds this relay already, if there is one."""
        if self._other is None:
            return None
        return self._link.relay.feeders.circle_through(self._other.relay, self._link.id)

    def _check(self) -> None:
        """Raise ``Down`` if there is a circle."""
        path = self._circle()
        if path is not None:
            raise self._link.circle(path)

    async def hold(self) -> None:
        """Hold the connection until it breaks, which raises ``Down``."""
        feeders_ = self._link.relay.feeders
        feeders_.watchers.append(self._note_change)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._receive)
                nursery.start_soon(self._liveness.watch)
                if self._other is not None:
                    nursery.start_soon(self._announce_changes)
        finally:
            feeders_.watchers.remove(self._note_change)

    def _note_change(self) -> None:
        self._changed.set()

    async def _announce_changes(self) -> None:
        while True:
            await self._announce()
            await self._changed.wait()
            self._changed = trio.Event()

    async def _announce(self) -> None:
        now = self._link.relay.feeders.announcement(self._link.id, named=True)
        if now != self._told:
            self._told = now
            await self._socket.send_frame({"type": feeders.NAME, **now})

    async def _receive(self) -> None:
        while True:
            await self._receive_some()

    async def _receive_some(self) -> None:
        texts = await self._receive_messages()
        turn = Turn()
        for text in texts:
            await self._text(text)
            if turn.over:
                await turn.pass_on()

    async def _text(self, text: bytes) -> None:
        limits = self._link.host.limits
        try:
            message = frames.parse(text, limits.max_event_bytes, limits.max_frame_bytes)
        except ProtocolError:
            return
        if isinstance(message, dict):
            await self._frame(message)

    async def _receive_messages(self) -> list[bytes]:
        try:
            return await self._socket.receive()
        except Down as down:
            if down.reason == LOOP:
                self._check()
            raise

    async def _frame(self, frame: dict[str, object]) -> None:
        if frame["type"] == "closing" and frame.get("reason") == LOOP:
            self._check()
            raise Down(LOOP, "the upstream found that the relays would feed each other in a circle")
        await self._liveness.frame(frame)

    async def close(self) -> None:
        """Say that this is the end, and close."""
        await self._socket.close(1000, "link-down")
