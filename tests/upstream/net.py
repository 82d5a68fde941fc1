"""Relays in one process, chained over lines in memory that can be cut, stopped and refused; time is simulated.

``Net`` knows every relay by its host name. A link dials by name and gets one end of a ``Line``; the relay at the other
end serves its ``MemoryWire`` as it would serve a socket.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio
import trio.testing

from aep_relay.bindings import router
from aep_relay.bindings.auth import Authority
from aep_relay.bindings.service import Service
from aep_relay.config import Auth, Config, Upstream
from aep_relay.hub.limits import Limits
from aep_relay.hub.relay import Relay
from aep_relay.transport.deadlines import Deadlines
from aep_relay.transport.wire import Wire
from aep_relay.upstream.chain import Chain
from aep_relay.upstream.dial import Target, target
from aep_relay.upstream.errors import UNREACHABLE, Down
from aep_relay.upstream.link import Link
from tests.bindings.served import BEARER, TOKEN, Served, Socket, settle
from tests.fakes.wire import MemoryWire

Serve = Callable[[Wire], Awaitable[None]]

PATIENT = Limits(ping_timeout_seconds=1e9)
"""Clients of the tests answer no pings."""

WINDOW_BYTES = 256 * 1024
"""So much may be on its way in each direction."""


class Line(MemoryWire):
    """The far end of a connection, as the relay there has it; ``near`` is the other."""

    def __init__(self) -> None:
        super().__init__(capacity_bytes=WINDOW_BYTES)
        self.near = Near(self)
        self.stopped = False
        """Whether nothing passes any more, in either direction, and nobody is told."""
        self.up_bytes = 0

    def send(self, data: bytes | bytearray | memoryview) -> int:
        taken = super().send(data)
        self.near.wake()
        return taken

    def close(self) -> None:
        super().close()
        self.near.wake()

    def shutdown_write(self) -> None:
        super().shutdown_write()
        self.near.wake()

    def cut(self) -> None:
        """Break the connection at both ends."""
        self.reset()
        self.near.broken = True
        self.near.wake()


class Near(trio.abc.Stream):
    """The near end, as the link has it."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._changed = trio.Event()
        self._closed = False
        self.broken = False

    def wake(self) -> None:
        self._changed.set()

    async def _wait(self) -> None:
        await self._changed.wait()
        self._changed = trio.Event()

    def _check(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError
        if self.broken:
            raise trio.BrokenResourceError

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await trio.lowlevel.checkpoint()
        line = self._line
        while True:
            self._check()
            if line.closed:
                raise trio.BrokenResourceError
            waiting = sum(map(len, line._inbound))
            if not line.stopped and waiting < WINDOW_BYTES:
                break
            with trio.move_on_after(0.01 if not line.stopped else 1.0):
                await self._wait()
        line.up_bytes += len(data)
        line.feed(bytes(data))

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        await trio.lowlevel.checkpoint()
        line = self._line
        while True:
            self._check()
            if line.sent and not line.stopped:
                data = bytes(line.sent[:max_bytes])
                del line.sent[: len(data)]
                if line.capacity_bytes is not None:
                    line.capacity_bytes += len(data)
                return data
            if (line.closed or line.write_ended) and not line.stopped:
                if line.aborted:
                    raise trio.BrokenResourceError
                return b""
            await self._wait()

    async def aclose(self) -> None:
        self._closed = True
        self.wake()
        if not self._line.stopped:
            self._line.feed_end()
        await trio.lowlevel.checkpoint()


class Net:
    """Who is reachable under which name, and how it is with the way there."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.nursery = nursery
        self.hosts: dict[str, Serve] = {}
        self.lines: dict[str, list[Line]] = {}
        self.refused: set[str] = set()
        """Nobody answers there."""
        self.stopped: set[str] = set()
        """Nothing passes on the way there: connections can't be made and those there are stand still."""
        self.dialled: dict[str, list[float]] = {}

    def cut(self, name: str) -> None:
        """Break every connection to ``name``, and refuse new ones."""
        self.refused.add(name)
        for line in self.lines.pop(name, []):
            line.cut()

    def mend(self, name: str) -> None:
        """Let connections to ``name`` be made again; those that stood still are gone."""
        self.refused.discard(name)
        if name in self.stopped:
            self.stopped.discard(name)
            for line in self.lines.pop(name, []):
                line.cut()

    def stop(self, name: str) -> None:
        """Let nothing pass to and from ``name``, without a word."""
        self.stopped.add(name)
        for line in self.lines.get(name, []):
            line.stopped = True

    def dial(self, upstream: Upstream) -> Dial:
        return Dial(self, upstream)


class Dial:
    """Opens lines by host name."""

    def __init__(self, net: Net, upstream: Upstream) -> None:
        self._net = net
        self._seconds = upstream.connect_timeout_seconds
        self.target: Target = target(upstream)

    async def __call__(self) -> trio.abc.Stream:
        net, name = self._net, self.target.host
        await trio.lowlevel.checkpoint()
        net.dialled.setdefault(name, []).append(trio.current_time())
        if name in net.refused or name not in net.hosts:
            raise Down(UNREACHABLE, "Connection refused")
        if name in net.stopped:
            await trio.sleep(self._seconds)
            raise Down(UNREACHABLE, f"no connection within {self._seconds:g} s")
        line = Line()
        net.lines.setdefault(name, []).append(line)
        net.nursery.start_soon(net.hosts[name], line)
        return line.near


class Node(Served):
    """One relay of the net, with its links."""

    def __init__(self, net: Net, name: str, *upstreams: Upstream, limits: Limits | None = None) -> None:
        self.nursery = net.nursery
        self.net = net
        self.name = name
        self.config = Config(
            limits=limits or PATIENT,
            auth=Auth(token=TOKEN),
            upstreams=tuple(upstreams),
            listen=Config().listen,
        )
        self.scope = trio.CancelScope()
        self._instance = 0
        self.start()

    def start(self) -> None:
        """Begin anew, with nothing held."""
        self._instance += 1
        config = self.config
        relay = Relay(config.limits, instance=f"{self.name}{self._instance}")
        self.service = Service(config, relay, Authority(config.auth, config.tokens), Deadlines())
        self.chain = Chain(self.service, config.upstreams, dial=self.net.dial)
        self.service.links = self.chain.describe
        self.scope = trio.CancelScope()
        self.net.hosts[self.name] = self._serve
        self.net.refused.discard(self.name)
        self.nursery.start_soon(self._run, self.scope)

    async def _run(self, scope: trio.CancelScope) -> None:
        with scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.service.deadlines.run)
                nursery.start_soon(self.service.flush_left_over)
                nursery.start_soon(self.chain.run)

    async def _serve(self, wire: Wire) -> None:
        if self.service.admit():
            await router.serve(self.service, wire)
        else:
            wire.close()

    def kill(self) -> None:
        """End at once, without a word."""
        self.net.cut(self.name)
        self.scope.cancel()

    def links(self, kind: str = "push") -> list[Link]:
        return [link for link in self.chain.links if link.kind == kind]

    @property
    def link(self) -> Link:
        """The only one."""
        (link,) = self.chain.links
        return link

    async def take(self, *events: bytes) -> None:
        """Accept Events by POST."""
        for start in range(0, len(events), 1000):
            answer = await self.post(*events[start : start + 1000], headers=BEARER)
            assert answer.status == 202, answer.body

    def held(self, session: str = "s") -> list[str]:
        """The ids of what is held of ``session``, in order."""
        buffer = self.relay.store.get(session)
        if buffer is None:
            return []
        events, _ = buffer.read(buffer.cursor_at_start(), 1_000_000, 1 << 40)
        return [event.id for event in events]


def event(id_: str, seq: int | None, session: str | None = "s", **members: Any) -> bytes:
    """An Event on one line, of severity ``notice``."""
    made: dict[str, Any] = {
        "aep": "0.1",
        "id": id_,
        "type": "tool.completed",
        "time": "2026-07-03T10:15:04Z",
        "source": "aep://host-a/agent/coder",
        "agent": "coder",
        "session": session,
        "seq": seq,
        "severity": "notice",
        **members,
    }
    return json.dumps({name: value for name, value in made.items() if value is not None}).encode()


def events(*seqs: int, session: str = "s", **members: Any) -> list[bytes]:
    return [event(f"{session}{seq}", seq, session, **members) for seq in seqs]


def ids(*seqs: int, session: str = "s") -> list[str]:
    return [f"{session}{seq}" for seq in seqs]


def to(name: str, mode: str = "push", **settings: Any) -> Upstream:
    """A link to the relay ``name``, with its token."""
    return Upstream(
        settings.pop("label", name), url=f"http://{name}", mode=mode, **{"token": TOKEN, **settings}
    )


async def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Let time pass until ``condition`` holds."""
    with trio.fail_after(seconds):
        while not condition():
            await settle()
            if condition():
                return
            await trio.sleep(0.05)


async def heard(socket: Socket, count: int = 1) -> list[Any]:
    """Wait for ``count`` Events and errors; there must not be more."""
    found: list[Any] = []

    def enough() -> bool:
        found.extend(frame for frame in socket.heard() if frame["type"] not in ("ping", "subscribed"))
        return len(found) >= count

    await until(enough)
    assert len(found) == count, found
    return found


@asynccontextmanager
async def net() -> AsyncIterator[Net]:
    """A net without relays."""
    async with trio.open_nursery() as nursery:
        yield Net(nursery)
        nursery.cancel_scope.cancel()
