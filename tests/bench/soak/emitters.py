"""Emitters of the soak: each emits session after session, each of these over several connections.

Events count as sent when the relay has confirmed them, by ``pong`` or ``202``. After a connection that ended before,
all that is unconfirmed is sent again.
"""

from __future__ import annotations

import re

import trio

from .. import wire
from . import lines
from .ledger import Session, event
from .lines import Refused, line
from .scene import Scene

ACCEPTS = "control.cancel"
_COMMAND = re.compile(rb'"type":"control\.cancel".*?"id":"(c-[0-9]+)"')
_LARGE_BYTES = 50_000
_SIZES_BYTES = (50, 100, 200, 300, 300, 1_000)


class Emitter:
    """One of them; ``over_socket`` and ``over_post`` are the two kinds."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._over = 0.0
        self._cut = 0.0
        self._pending: list[bytes] = []
        """Events that are unconfirmed: sent again as they were (AEP-0001 §7)."""
        self._filling = "".join(scene.randomness.choices("abcdefghij klmnop", k=_LARGE_BYTES))

    async def over_socket(self) -> None:
        """Emit over WebSocket, and accept commands."""
        await self._run(self._emit_over_socket)

    async def over_post(self) -> None:
        """Emit batches."""
        await self._run(self._emit_over_post)

    async def _run(self, emit: lines.Act[Session]) -> None:
        scene = self._scene
        await scene.pause(0, 2)
        while scene.emitting:
            session = scene.new_session()
            self._over = trio.current_time() + scene.randomness.uniform(20, 90)
            while self._goes_on or session.confirmed < session.seq:
                # What was made has to come, or it would seem to be lost on the way out.
                self._cut = trio.current_time() + scene.randomness.uniform(3, 20)
                try:
                    await emit(session)
                except (trio.BrokenResourceError, OSError):
                    scene.counts["emitters broken off"] += 1
                    await scene.pause(0.05, 0.2)
                except Refused as refused:
                    scene.fail("emitter refused", f"{session.name}: {refused}")
                    await trio.sleep(1)
            del scene.sessions[session.name]

    @property
    def _goes_on(self) -> bool:
        return self._scene.emitting and trio.current_time() < self._over

    def _add(self, session: Session, count: int, type_: str = "tool.completed", cause: str = "") -> None:
        """Make more Events."""
        size = _LARGE_BYTES if self._scene.chance(0.003) else self._scene.randomness.choice(_SIZES_BYTES)
        filling = self._filling[:size]
        numbers = range(session.seq + 1, session.seq + 1 + count)
        self._pending += [event(session.name, seq, filling, type_, cause) for seq in numbers]
        session.seq += count

    def _grow(self, session: Session) -> None:
        if self._goes_on:
            count: int = self._scene.randomness.choice((1, 1, 2, 5, 10, 20, 60))
            # Beyond some pace it is the way there and back that takes the time.
            self._add(session, count * max(1, int(self._scene.pace / 4)))

    def _is_cut(self) -> bool:
        return self._goes_on and trio.current_time() > self._cut

    async def _tear(self, connection: lines.Line, data: bytes) -> None:
        """Send some of ``data`` and be gone: nobody knows how much of it was taken in."""
        await connection.send(data[: self._scene.randomness.randrange(len(data) + 1)])
        self._scene.leave(connection)

    async def _breathe(self, session: Session) -> None:
        session.confirmed = session.seq
        self._pending.clear()
        await trio.sleep(self._scene.randomness.expovariate(10 * self._scene.pace))

    async def _emit_over_socket(self, session: Session) -> None:
        scene = self._scene
        async with line(scene.server) as connection:
            data = await lines.upgraded(connection, scene.server, scene.tokens[0], "emitter", [ACCEPTS])
            while self._goes_on or session.confirmed < session.seq:
                for cause in _COMMAND.findall(data):
                    self._add(session, 1, "control.accepted", cause.decode())
                    scene.counts["commands accepted"] += 1
                self._grow(session)
                frames = b"".join(map(wire.frame, self._pending))
                if self._is_cut():
                    await self._tear(connection, frames)
                    return
                await connection.send(frames + wire.json_frame({"type": "ping", "t": session.seq}))
                data = await connection.until(b'{"type":"pong","t":%d}' % session.seq)
                if b'{"type":"error"' in data:
                    scene.fail("emitter told of an error", repr(data[:300]))
                await self._breathe(session)

    async def _emit_over_post(self, session: Session) -> None:
        scene = self._scene
        async with line(scene.server) as connection:
            while self._goes_on or session.confirmed < session.seq:
                self._grow(session)
                request = wire.post(scene.server, b"\n".join(self._pending))
                if self._is_cut():
                    await self._tear(connection, request)
                    return
                await connection.send(request)
                await connection.until(b"}", await connection.head(202))
                await self._breathe(session)
