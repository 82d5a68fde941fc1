"""Chained relays as processes of their own, each with a port that it keeps when it is started again."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import trio

from tests.installed import QUIET, Installed, installed
from tests.ports import free_port
from tests.system.running import PATIENCE_SECONDS, Message, Running
from tests.upstream import net

TOKEN = "secret-of-the-chain"
QUICK = "retry_min_seconds = 0.05\nretry_max_seconds = 0.3\n"


class Site:
    """One relay: where it is, how it is configured, and the process it has at the moment."""

    def __init__(self, folder: Path, stack: ExitStack, name: str) -> None:
        self.name = name
        self.port = free_port()
        self.folder = folder / name
        self.folder.mkdir()
        self.config = f'{QUIET}[auth]\ntoken = "{TOKEN}"\n[log]\nlevel = "debug"\n'
        self.env: dict[str, str] = {}
        self.prefix: Sequence[str] = ()
        self._stack = stack

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def add(self, text: str) -> None:
        self.config += text

    def link(self, to: Site, mode: str = "push", more: str = "", *, name: str = "", url: str = "") -> None:
        """Have it chained to another one."""
        token = "" if "token" in more else f'token = "{TOKEN}"\n'
        where = more if "unix" in more else f'url = "{url or to.url}"\n{more}'
        self.add(f'[[upstream]]\nname = "{name or to.name}"\nmode = "{mode}"\n{QUICK}{token}{where}')

    def start(self) -> None:
        """Start it; ``ready`` waits until it listens."""
        arguments = ["--port", str(self.port)]
        self.process: Installed = self._stack.enter_context(
            installed(self.folder, self.config, arguments, prefix=self.prefix, **self.env)
        )

    def ready(self) -> Running:
        assert self.process.port() == self.port
        self.running = Running(self.process, self.port, TOKEN)
        self._stack.callback(self.running.client.close)
        return self.running

    def kill(self) -> None:
        self.process.end(signal.SIGKILL)

    def links(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.running.get("/connections")["links"]
        return found

    def states(self) -> list[str]:
        return [str(link["state"]) for link in self.links()]

    async def held(self, session: str) -> list[bytes]:
        """The Events that it holds of a session, in order."""
        filter_ = json.dumps({"session": session})
        found: list[Message] = await self.running.replay(filter=filter_, from_="all")
        return [message.data for message in found]

    async def holds(self, session: str, events: Sequence[bytes]) -> None:
        """Wait until it holds just these, in this order."""
        deadline = trio.current_time() + PATIENCE_SECONDS
        while (found := await self.held(session)) != list(events):
            assert trio.current_time() < deadline, (self.name, found, "".join(self.process.lines[-20:]))
            await trio.sleep(0.05)


async def until(condition: Callable[[], bool], *sites: Site) -> None:
    """Wait until ``condition`` holds."""
    deadline = trio.current_time() + PATIENCE_SECONDS
    while not condition():
        assert trio.current_time() < deadline, [site.links() for site in sites]
        await trio.sleep(0.05)


async def up(*sites: Site) -> None:
    """Wait until every link of ``sites`` is up."""
    await until(lambda: all(state == "up" for site in sites for state in site.states()), *sites)


@contextmanager
def chain(folder: Path, names: str) -> Iterator[list[Site]]:
    """Sites by name, to be configured and started."""
    with ExitStack() as stack:
        yield [Site(folder, stack, name) for name in names.split()]


def start(*sites: Site) -> None:
    """Start all at once, and wait until all listen."""
    for site in sites:
        site.start()
    for site in sites:
        site.ready()


def event(id_: str, seq: int | None, session: str = "s", **members: Any) -> bytes:
    """An Event whose text nobody would write again just so."""
    text = net.event(id_, seq, session, **members).decode()
    return f'{text[:-1]} , "odd"\t:"\\u00e9 é" }}'.encode()


def events(*seqs: int, session: str = "s", **members: Any) -> list[bytes]:
    return [event(f"{session}{seq}", seq, session, **members) for seq in seqs]
