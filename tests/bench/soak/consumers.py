"""Consumers of the soak that want everything: they come and go, stall, and resume by the rules of their binding."""

from __future__ import annotations

import itertools

import trio

from . import lines
from .ledger import Farewell, Ledger, goals
from .lines import Line, Refused, line
from .scene import Scene

CATCH_UP_SECONDS = 60.0
"""To get all that was confirmed when a consumer's time was over."""
LIFE_SECONDS = 45.0
STALL_SECONDS = 20.0
SMALL_BUFFER_BYTES = 32 * 1024
_PIECE_BYTES = 8 * 1024


class Consumer:
    """One after another, with books over at most ``most`` sessions each, from their start or from a little back."""

    def __init__(self, scene: Scene, most: int) -> None:
        self._scene = scene
        self._most = most
        self._ledger = Ledger("none", {}, scene.tally)
        self._over = 0.0
        self._cut = 0.0
        self._goals: dict[str, int] | None = None

    async def after_last_id(self) -> None:
        """Do what an EventSource does: resume after the ``id`` that came last."""
        await self._run(self._stream_after_last_id)

    async def streams(self) -> None:
        """Resume an SSE stream from the positions of all sessions."""
        await self._run(self._stream)

    async def sockets(self) -> None:
        """Resume the subscriptions of a WebSocket, from what ``closing`` says where it does."""
        await self._run(self._socket)

    async def slow_sockets(self) -> None:
        """Do so, and stop reading until the relay has had enough, or nearly."""
        await self._run(self._slow_socket)

    async def _run(self, act: lines.Act[Ledger]) -> None:
        scene = self._scene
        await scene.pause(2, 4)
        for number in itertools.count():
            if not scene.going or not scene.sessions:
                return
            names = scene.randomness.sample(sorted(scene.sessions), min(self._most, len(scene.sessions)))
            name = f"{act.__name__.lstrip('_')} {number}"
            sessions = {each: scene.sessions[each] for each in names}
            # The beginning of many is gone; what is recent has to come.
            back = scene.randomness.choice((0, 50, 200, 1_000_000))
            begins = {each: max(0, session.confirmed - back) for each, session in sessions.items()}
            self._ledger = Ledger(name, sessions, scene.tally, begins)
            self._goals = None
            self._over = trio.current_time() + scene.randomness.uniform(LIFE_SECONDS / 4, LIFE_SECONDS)
            with trio.move_on_after(LIFE_SECONDS + STALL_SECONDS + CATCH_UP_SECONDS):
                await self._follow(act)
            self._close_books()

    def _close_books(self) -> None:
        ledger = self._ledger
        self._scene.counts["books closed"] += 1
        ledger.close()
        wanted = self._goals or goals(ledger.sessions)
        for session in ledger.missing(wanted):
            self._scene.fail("never came", f"{ledger.name}: {ledger.progress(session)}, of {wanted[session]}")

    async def _follow(self, act: lines.Act[Ledger]) -> None:
        scene, ledger = self._scene, self._ledger
        while self._goals is None or ledger.missing(self._goals):
            self._cut = trio.current_time() + scene.randomness.expovariate(0.15)
            ledger.begin()
            scene.counts["connections of consumers"] += 1
            try:
                await act(ledger)
            except (trio.BrokenResourceError, OSError):
                scene.counts["consumers broken off"] += 1
            except Refused as refused:
                if not refused.is_passing:
                    scene.fail("consumer refused", f"{ledger.name}: {refused}")
                await trio.sleep(0.2)
            if scene.chance(0.3) and self._goals is None:
                await scene.pause(0, 3)

    def _ends(self) -> bool:
        """Return whether this connection has lasted long enough: at the end, until everything has come."""
        now = trio.current_time()
        if self._goals is None and (now > self._over or not self._scene.going):
            self._goals = goals(self._ledger.sessions)
        return now > self._cut if self._goals is None else not self._ledger.missing(self._goals)

    async def _take(self, connection: Line, data: bytes, farewell: Farewell | None = None) -> bool:
        """Take in what comes; returns whether the relay ended it."""
        while True:
            self._ledger.take(data)
            if farewell is not None:
                farewell.feed(data)
            if self._ends():
                self._scene.leave(connection)
                return False
            if len(data) < _PIECE_BYTES:
                # What comes in many pieces costs the load less in few.
                await trio.sleep(0.02)
            data = b""
            with trio.move_on_after(1):
                data = await connection.receive()
                if not data:
                    return True

    def _token(self) -> str:
        return self._scene.randomness.choice(self._scene.tokens)

    async def _stream_after_last_id(self, ledger: Ledger) -> None:
        parameters, headers = lines.stream_parameters(ledger.positions), {}
        if ledger.last_id:
            headers["Last-Event-ID"] = ledger.last_id.decode()
            del parameters["from"]
        await self._read_stream(parameters, headers)

    async def _stream(self, ledger: Ledger) -> None:
        await self._read_stream(lines.stream_parameters(ledger.positions), {})

    async def _read_stream(self, parameters: dict[str, str], headers: dict[str, str]) -> None:
        server = self._scene.server
        async with line(server) as connection:
            await connection.send(lines.get(server, self._token(), "/stream", parameters, headers))
            await self._take(connection, await connection.head(200))

    async def _socket(self, ledger: Ledger) -> None:
        async with line(self._scene.server) as connection:
            await self._read_socket(connection, ledger, 0.0)

    async def _slow_socket(self, ledger: Ledger) -> None:
        async with line(self._scene.server, SMALL_BUFFER_BYTES) as connection:
            await self._read_socket(connection, ledger, self._scene.randomness.uniform(0.5, STALL_SECONDS))

    async def _read_socket(self, connection: Line, ledger: Ledger, stalls_seconds: float) -> None:
        scene, names = self._scene, list(ledger.positions)
        data = await lines.upgraded(connection, scene.server, self._token(), "consumer", [])
        for id_, part, more in (("a", names[::2], {}), ("b", names[1::2], {"capture": "metadata"})):
            if part:
                positions = {name: ledger.positions[name] for name in part}
                await connection.send(lines.subscribe(id_, positions, more))
        if stalls_seconds and self._goals is None:
            await trio.sleep(stalls_seconds)
            self._cut = max(self._cut, trio.current_time() + 5)
        farewell = Farewell()
        if not await self._take(connection, data, farewell):
            return
        told = farewell.delivered()
        scene.counts["ended without positions" if told is None else "ended with positions"] += 1
        for text in ledger.resume_from(told or {}):
            scene.fail("overstated", f"{ledger.name}: {text}")
