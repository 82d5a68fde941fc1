"""A tree of five relays through kills, restarts and cut lines, by a schedule that a seed makes.

    leaf ─push─┐                ┌─pull─ edge
               ├─ hub ─push─ top┤
    pier ─push─┘                └─consumers, as at hub and at edge

Agents emit at the leaves and, when their relay was lost, send again what they have sent. Consumers resume by the rules
of AEP-0003 §7: after the last position of each session that they have had Events of, from all that is held of others.
At the end each of them must hold what was emitted and its filter matches, byte for byte, and nothing else.

``python -m tests.upstream.tree --seeds 10 --seconds 600`` runs longer than the tests do.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import trio
from trio.testing import MockClock

from aep_relay import daemon
from aep_relay.protocol.event import decode
from aep_relay.upstream.errors import Down
from aep_relay.upstream.http import Client
from aep_relay.upstream.socket import Socket, open_socket
from tests.bindings.served import TOKEN, hello
from tests.upstream.net import Net, Node, event, net, to

SEVERITIES = ("debug", "info", "notice", "warning", "error", "critical")
PAUSE_SECONDS = 0.7
QUIET_SECONDS = 300
"""So long, at most, it may take until all is where it belongs, when nothing is broken any more."""


@dataclass
class Agent:
    """Emits one session at ``relay``, by POST or over WebSocket."""

    net: Net
    relay: str
    session: str
    posts: bool
    emitted: list[bytes] = field(default_factory=list)
    sent: int = 0
    """How many of them this run of the relay has taken."""

    def emit(self, rng: random.Random) -> None:
        seq = len(self.emitted)
        text = "é" * rng.randrange(40)
        made = event(
            f"{self.session}{seq}", seq, self.session, severity=rng.choice(SEVERITIES), subject=text or "none"
        )
        self.emitted.append(made)

    async def run(self) -> None:
        while True:
            with suppress(Down):
                await (self._post() if self.posts else self._speak())
            # What it took it may have taken with it.
            self.sent = 0
            await trio.sleep(1)

    async def _post(self) -> None:
        client = Client(self.net.dial(to(self.relay)), TOKEN, 10)
        try:
            while True:
                batch = self.emitted[self.sent : self.sent + 50]
                if batch:
                    answer = await client.post(b"\n".join(batch), b"application/x-ndjson")
                    if answer.status != 202:
                        return
                    self.sent += len(batch)
                await trio.sleep(0.2)
                await client.post(b"", b"application/x-ndjson")
        finally:
            await client.close()

    async def _speak(self) -> None:
        socket = await connect(self.net, self.relay, hello("emitter", self.session))
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._hear, socket)
                while True:
                    batch = self.emitted[self.sent : self.sent + 50]
                    if batch:
                        await socket.send(batch)
                        self.sent += len(batch)
                    await trio.sleep(0.2)
        except* Down:
            pass
        finally:
            await socket.close()

    async def _hear(self, socket: Socket) -> None:
        while True:
            await socket.receive()


@dataclass
class Consumer:
    """Reads what ``filter`` matches at ``relay``, and resumes by the rules."""

    net: Net
    relay: str
    filter: dict[str, Any]
    sessions: list[str]
    """Those that its filter lets pass."""
    had: dict[str, bytes] = field(default_factory=dict)
    positions: dict[str, tuple[int, int]] = field(default_factory=dict)
    connections: int = 0

    async def run(self) -> None:
        while True:
            with suppress(Down):
                await self._follow()
            await trio.sleep(1)

    async def _follow(self) -> None:
        socket = await connect(self.net, self.relay, hello("consumer"))
        self.connections += 1
        try:
            known = [{"session": name, "epoch": e, "seq": s} for name, (e, s) in self.positions.items()]
            if known:
                await socket.send_frame(
                    {"type": "subscribe", "id": "known", "filter": self.filter, "from": known}
                )
            others = [name for name in self.sessions if name not in self.positions]
            if others:
                begun = {**self.filter, "session": others}
                await socket.send_frame({"type": "subscribe", "id": "begun", "filter": begun, "from": "all"})
            while True:
                for text in await socket.receive():
                    self._take(text)
        finally:
            await socket.close()

    def _take(self, text: bytes) -> None:
        message = json.loads(text)
        if "." in message["type"]:
            found = decode(text)
            assert found.session is not None
            assert found.position is not None
            self.had.setdefault(found.id, text)
            highest = self.positions.get(found.session, found.position)
            self.positions[found.session] = max(highest, found.position)
        elif message["type"] == "closing":
            for said in message["delivered"]:
                position = said["epoch"], said["seq"]
                if said["sub"] == "known" and position < self.positions.get(said["session"], position):
                    self.positions[said["session"]] = position


async def connect(net_: Net, relay: str, greeting: dict[str, Any]) -> Socket:
    socket, _ = await open_socket(
        net_.dial(to(relay)),
        greeting,
        token=TOKEN,
        seconds=10,
        send_timeout_seconds=10,
        max_message_bytes=1 << 20,
    )
    return socket


class Tree:
    """The relays, and what happens to them."""

    def __init__(self, net_: Net, rng: random.Random) -> None:
        self.net, self.rng = net_, rng
        quick: dict[str, Any] = {
            "answer_timeout_seconds": 5.0,
            "connect_timeout_seconds": 3.0,
            "retry_max_seconds": 5.0,
        }
        self.nodes = {
            "top": Node(net_, "top"),
            "hub": Node(net_, "hub", to("top", **quick)),
            "leaf": Node(net_, "leaf", to("hub", **quick)),
            "pier": Node(net_, "pier", to("hub", **quick)),
            "edge": Node(net_, "edge", to("top", "pull", **quick)),
        }
        self.agents = [
            Agent(net_, relay, f"{relay}-{number}", posts=number == 1)
            for relay in ("leaf", "pier")
            for number in range(2)
        ]
        notable: dict[str, Any] = {"severity": {"gte": "notice"}}
        own: dict[str, Any] = {"session": ["leaf-0", "pier-1"]}
        every = [agent.session for agent in self.agents]
        self.consumers = [
            Consumer(net_, relay, filter_, filter_.get("session", every))
            for relay in ("hub", "top", "edge")
            for filter_ in (notable, notable | own, own)
        ]
        self.done: list[str] = []
        self._broken: set[str] = set()

    async def run(self, seconds: float) -> None:
        """Let things happen for so long, then mend everything and see that all is where it belongs."""
        async with trio.open_nursery() as clients:
            for agent in self.agents:
                clients.start_soon(agent.run)
            for consumer in self.consumers:
                clients.start_soon(consumer.run)
            with trio.move_on_after(seconds):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._emit)
                    nursery.start_soon(self._break)
                    nursery.start_soon(self._break)
            for name, node in self.nodes.items():
                if name in self.net.refused or node.scope.cancel_called:
                    node.kill()
                    node.start()
                self.net.mend(name)
            wanted = [(consumer, *self._wanted(consumer)) for consumer in self.consumers]
            for _ in range(QUIET_SECONDS):
                if all(must.keys() <= consumer.had.keys() for consumer, _, must in wanted):
                    break
                await trio.sleep(1)
            await trio.sleep(30)
            clients.cancel_scope.cancel()
        for consumer, may, must in wanted:
            assert must.items() <= consumer.had.items() <= may.items(), (consumer.relay, consumer.filter)

    async def _emit(self) -> None:
        while True:
            for _ in range(self.rng.randrange(6)):
                self.rng.choice(self.agents).emit(self.rng)
            await trio.sleep(PAUSE_SECONDS)

    async def _break(self) -> None:
        while True:
            await trio.sleep(self.rng.uniform(0, 12))
            name = self.rng.choice([name for name in self.nodes if name not in self._broken])
            what = self.rng.choice([self._kill, self._restart, self._cut, self._stop, self._reset])
            self.done.append(f"{trio.current_time():.1f} {what.__name__[1:]} {name}")
            self._broken.add(name)
            await what(name)
            self._broken.discard(name)

    async def _kill(self, name: str) -> None:
        self.nodes[name].kill()
        await trio.sleep(self.rng.uniform(0, 20))
        self.nodes[name].start()

    async def _restart(self, name: str) -> None:
        node = self.nodes[name]
        self.net.refused.add(name)
        node.service.draining = True
        await daemon.drain(node.service)
        with trio.move_on_after(daemon.FINISH_SECONDS):
            await node.chain.finish()
        await self._kill(name)

    async def _cut(self, name: str) -> None:
        self.net.cut(name)
        await trio.sleep(self.rng.uniform(0, 30))
        self.net.mend(name)

    async def _stop(self, name: str) -> None:
        self.net.stop(name)
        await trio.sleep(self.rng.uniform(0, 60))
        self.net.mend(name)

    async def _reset(self, name: str) -> None:
        lines = self.net.lines.get(name, [])
        for line in self.rng.sample(lines, min(len(lines), 3)):
            line.cut()

    def _wanted(self, consumer: Consumer) -> tuple[dict[str, bytes], dict[str, bytes]]:
        """Return what may be there, and of it what must be: all of notice and above."""
        rank = SEVERITIES.index(consumer.filter.get("severity", {"gte": "debug"})["gte"])
        may, must = {}, {}
        for agent in self.agents:
            if agent.session not in consumer.sessions:
                continue
            for raw in agent.emitted:
                said = json.loads(raw)
                severity = SEVERITIES.index(said["severity"])
                if severity >= rank:
                    may[said["id"]] = raw
                if severity >= max(rank, SEVERITIES.index("notice")):
                    must[said["id"]] = raw
        return may, must


async def grow(seed: int, seconds: float) -> Tree:
    """Run one tree. Raises ``AssertionError`` where something is missing."""
    async with net() as net_:
        tree = Tree(net_, random.Random(seed))  # noqa: S311  # no secret
        await tree.run(seconds)
        return tree


def simulate(work: Callable[[], Awaitable[Tree]], seed: int) -> Tree:
    """Run ``work`` in time that jumps, with all that is left to chance made by ``seed``."""
    random.seed(seed)
    scheduler: Any = trio._core._run
    scheduler._ALLOW_DETERMINISTIC_SCHEDULING = True
    scheduler._r.seed(seed)
    try:
        return trio.run(work, clock=MockClock(autojump_threshold=0))
    finally:
        scheduler._ALLOW_DETERMINISTIC_SCHEDULING = False


def main() -> None:
    """Run trees as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=10, help="how many")
    parser.add_argument("--seconds", type=float, default=300.0, help="for how long things break, in each")
    options = parser.parse_args()
    for seed in range(options.first, options.first + options.seeds):
        tree = simulate(partial(grow, seed, options.seconds), seed)
        emitted = sum(len(agent.emitted) for agent in tree.agents)
        connections = sum(consumer.connections for consumer in tree.consumers)
        print(f"seed {seed}: {emitted} Events, {len(tree.done)} breaks, {connections} connections: all there")


if __name__ == "__main__":
    main()
