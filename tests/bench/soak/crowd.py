"""Everybody in the soak, among them those who only trouble: readers, deaf ones, strangers, herds."""

from __future__ import annotations

import itertools
import json
from collections.abc import Awaitable, Callable, Iterator
from functools import partial

import trio

from tests.fuzz.framing import frames_of
from tests.fuzz.mutation import mutants
from tests.fuzz.seeds import EVENTS, HTTP, WEBSOCKET

from .. import wire
from . import lines
from .consumers import SMALL_BUFFER_BYTES, Consumer
from .emitters import ACCEPTS, Emitter
from .lines import Refused, line
from .scene import Scene

HERD = 150
HERD_SECONDS = 30.0
_MUTANTS = 1_000_000


def everybody(scene: Scene) -> Iterator[Callable[[], Awaitable[None]]]:
    """Yield each peer, which is there until the scene is over."""
    trouble = Trouble(scene)
    kinds: list[tuple[int, Callable[[], Callable[[], Awaitable[None]]]]] = [
        (20, lambda: Emitter(scene).over_socket),
        (10, lambda: Emitter(scene).over_post),
        (20, lambda: Consumer(scene, 1).after_last_id),
        (12, lambda: Consumer(scene, 8).streams),
        (20, lambda: Consumer(scene, 10).sockets),
        (4, lambda: Consumer(scene, 100).slow_sockets),
        (40, lambda: trouble.reader),
        (6, lambda: trouble.deaf),
        (1, lambda: trouble.commander),
        (1, lambda: trouble.herds),
        (1, lambda: trouble.bad_requests),
        (1, lambda: trouble.bad_frames),
        (1, lambda: trouble.bad_events),
    ]
    for count, make in kinds:
        for _ in range(count):
            yield make()


class Trouble:
    """Those who keep no books."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._causes = itertools.count(1)

    async def _again(self, act: Callable[[], Awaitable[None]], pause_seconds: float) -> None:
        """Do ``act`` over and over: a relay that ends the connection in the middle of it does right."""
        scene = self._scene
        while scene.going:
            try:
                await act()
            except (trio.BrokenResourceError, OSError):
                scene.counts["others broken off"] += 1
            except Refused as refused:
                if not refused.is_passing:
                    scene.fail("refused", str(refused))
            await scene.pause(0, 2 * pause_seconds)

    async def reader(self) -> None:
        """Read live Events of many sessions for a while, and look at none."""
        await self._again(self._read, 0.5)

    async def _read(self) -> None:
        scene = self._scene
        over = trio.current_time() + scene.randomness.uniform(1, 15)
        filter_ = scene.randomness.choice(({}, {"severity": {"gte": "notice"}}, {"type": "control.*"}))
        async with line(scene.server) as connection:
            query = {"filter": json.dumps(filter_), **({"from": "all"} if scene.chance(0.05) else {})}
            await connection.send(lines.get(scene.server, scene.tokens[0], "/stream", query, {}))
            await connection.head(200)
            while scene.going and trio.current_time() < over:
                with trio.move_on_after(1):
                    if not await connection.receive():
                        return
                await trio.sleep(0.05)
            scene.leave(connection)

    async def deaf(self) -> None:
        """Subscribe to everything and never read, until the relay ends it or nearly."""
        await self._again(self._be_deaf, 0.5)

    async def _be_deaf(self) -> None:
        scene = self._scene
        async with line(scene.server, SMALL_BUFFER_BYTES) as connection:
            await lines.upgraded(connection, scene.server, scene.tokens[0], "consumer", [])
            await connection.send(wire.json_frame({"type": "subscribe", "id": "a", "from": "all"}))
            await scene.stay(scene.randomness.uniform(5, 40))
            scene.leave(connection)

    async def commander(self) -> None:
        """Command whoever emits, and read what comes of it."""
        await self._again(self._command, 0.5)

    async def _command(self) -> None:
        scene = self._scene
        async with line(scene.server) as connection:
            data = await lines.upgraded(connection, scene.server, scene.tokens[0], "consumer", [])
            filter_ = {"type": "control.accepted"}
            await connection.send(wire.json_frame({"type": "subscribe", "id": "a", "filter": filter_}))
            for _ in range(20):
                if not scene.emitting or not scene.sessions:
                    return
                cause = f"c-{next(self._causes)}"
                session = scene.randomness.choice(list(scene.sessions))
                await connection.send(wire.frame(_cancel(session, cause)))
                scene.counts["commands"] += 1
                with trio.move_on_after(5) as scope:
                    data = await connection.until(b'"cause":"%b"' % cause.encode())
                    scene.counts["commands answered" if b'"error"' not in data else "commands refused"] += 1
                if scope.cancelled_caught:
                    scene.counts["commands unanswered"] += 1
                await scene.pause(0, 0.4)

    async def herds(self) -> None:
        """Come back all at once, now and then, and have everything replayed."""
        scene = self._scene
        while scene.going:
            await scene.stay(HERD_SECONDS)
            if not scene.emitting:
                return
            async with trio.open_nursery() as nursery:
                for _ in range(HERD):
                    nursery.start_soon(self._again_once, self._replay)
            scene.counts["herds"] += 1

    async def _again_once(self, act: Callable[[], Awaitable[None]]) -> None:
        try:
            await act()
        except (trio.BrokenResourceError, OSError, Refused):
            self._scene.counts["others broken off"] += 1

    async def _replay(self) -> None:
        scene = self._scene
        filter_ = json.dumps({"severity": {"gte": "warning"}, "session": list(scene.sessions)[:2]})
        query = {"from": "all", "live": "0", "filter": filter_}
        async with line(scene.server) as connection:
            await connection.send(lines.get(scene.server, scene.tokens[0], "/stream", query, {}))
            await connection.head(200)
            with trio.move_on_after(HERD_SECONDS):
                while await connection.receive():
                    scene.counts["pieces replayed to herds"] += 1

    async def bad_requests(self) -> None:
        """Send requests that mutation made, without a token mostly."""
        await self._strange(HTTP, _as_they_are, b"")

    async def bad_frames(self) -> None:
        """Send frames that mutation made, behind a good hello."""
        upgrade = lines.upgrade_request(self._scene.server, self._scene.tokens[0])
        await self._strange(WEBSOCKET, _framed, upgrade + lines.hello("both", [ACCEPTS]))

    async def bad_events(self) -> None:
        """POST Events that mutation made."""
        server = self._scene.server
        await self._strange(EVENTS, lambda data: wire.post(server, data, "application/json"), b"")

    async def _strange(self, seeds: list[bytes], spell: Callable[[bytes], bytes], before: bytes) -> None:
        scene = self._scene
        for data in mutants(seeds, _MUTANTS, scene.randomness.randrange(1 << 30)):
            if not scene.going:
                return
            scene.counts["bad input"] += 1
            with trio.move_on_after(2):
                await self._again_once(partial(self._say, before + spell(data)))
            await scene.pause(0, 0.1)

    async def _say(self, data: bytes) -> None:
        async with line(self._scene.server) as connection:
            await connection.send(data)
            if self._scene.chance(0.5):
                await connection.receive()
            self._scene.leave(connection)


def _as_they_are(data: bytes) -> bytes:
    return data


def _framed(data: bytes) -> bytes:
    return b"".join(frames_of(data[1:]))


def _cancel(session: str, cause: str) -> bytes:
    return (
        '{"aep":"0.1","type":"control.cancel","time":"2026-07-03T10:15:04.221Z","source":"aep://host/soak",'
        f'"agent":"commander","session":"{session}","id":"{cause}"}}'
    ).encode()
