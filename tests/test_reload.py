"""Taking a changed configuration over, part by part: all of them or none."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import structlog
import trio

from aep_relay import logs
from aep_relay.bindings import auth
from aep_relay.config import Config, ConfigError, Cors, Listen, Token
from aep_relay.hub.limits import Limits
from aep_relay.hub.policy import Grants
from aep_relay.reload import Reloader, TakeOver
from tests.bindings.governed import Governed, bearer, governed, token
from tests.bindings.served import event


@pytest.fixture(autouse=True)
def log() -> Iterator[Callable[[], list[dict[str, Any]]]]:
    stream = io.StringIO()
    logs.configure("debug", "json", stream)
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    structlog.reset_defaults()


Log = Callable[[], list[dict[str, Any]]]


def reloader(relay: Governed, *configs: Config | Exception) -> Reloader:
    """A reloader that reads one of ``configs`` after the other."""
    left = iter(configs)

    def reread() -> Config:
        config = next(left)
        if isinstance(config, Exception):
            raise config
        return config

    return Reloader(relay.service, reread)


async def test_what_is_read_is_in_force(log: Log) -> None:
    async with governed(token("t", "emit")) as relay:
        new = Config(
            tokens=(token("u", "emit"),), limits=Limits(buffer_events=3), cors=Cors(("https://a.example",))
        )
        assert await reloader(relay, new).reload()
        assert relay.service.config == new
        assert relay.service.limits is relay.relay.limits is relay.relay.store.limits is new.limits
        assert (await relay.post(event(), headers=bearer("t"))).status == 401
        assert (await relay.post(event(), headers=bearer("u"))).status == 202
        (record,) = log()
        assert record["changed"] == ["cors.allowed_origins", "limits.buffer_events", "tokens"]
        assert record["needs_restart"] == []


async def test_what_takes_long_with_many_tokens_is_done_in_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop compares and keeps them, which ten thousand of them take some milliseconds for."""
    at: list[bool] = []
    grants = auth._grants

    def seen(token: Token) -> Grants:
        at.append(threading.current_thread() is threading.main_thread())
        return grants(token)

    async with governed(token("same", "emit"), token("rated", "emit", events_per_second=1.0)) as relay:
        monkeypatch.setattr(auth, "_grants", seen)
        new = Config(
            tokens=(
                token("same", "emit"),
                token("rated", "emit", events_per_second=2.0),
                token("new", "emit"),
            )
        )
        assert await reloader(relay, new).reload()
        assert at == [False, False, False]
        for name in ("same", "rated", "new"):
            assert (await relay.post(event(0, name), headers=bearer(name))).status == 202


async def test_what_cannot_be_read_changes_nothing(log: Log) -> None:
    async with governed(token("t", "emit")) as relay:
        before = relay.service.config
        for problem in (
            ConfigError("log.level", "must be"),
            OSError("gone"),
            ValueError("oops"),
            MemoryError(),
        ):
            assert not await reloader(relay, problem).reload()
            assert relay.service.config is before
        assert (await relay.post(event(), headers=bearer("t"))).status == 202
        assert [record["level"] for record in log()] == ["error"] * 4


async def test_all_parts_take_over_or_none(log: Log) -> None:
    async with governed(token("t", "emit")) as relay:
        taken: list[str] = []

        def part(name: str) -> Callable[[Config], TakeOver]:
            def prepare(config: Config) -> TakeOver:
                if config.limits.max_claims == 13 and name == "last":
                    raise ConfigError("limits.max_claims", "is unlucky")
                return lambda: taken.append(name)

            return prepare

        bad = Config(tokens=(token("u", "emit"),), limits=Limits(max_claims=13))
        reloading = reloader(relay, bad, Config(tokens=(token("u", "emit"),)))
        for name in ("first", "last"):
            reloading.add(part(name))
        assert not await reloading.reload()
        assert taken == []
        assert (await relay.post(event(), headers=bearer("t"))).status == 202
        assert await reloading.reload()
        assert taken == ["first", "last"]
        assert (await relay.post(event(), headers=bearer("t"))).status == 401


async def test_what_no_part_takes_over_stays(log: Log) -> None:
    async with governed() as relay:
        new = replace(relay.service.config, listen=Listen(port=1, unix="x"))
        assert await reloader(relay, new).reload()
        assert relay.service.config.listen == Listen()
        assert log()[-1]["needs_restart"] == ["listen.port", "listen.unix"]
        reloading = reloader(relay, new)
        reloading.add(lambda config: lambda: None, "listen.port")
        assert await reloading.reload()
        assert relay.service.config.listen == Listen(port=1)
        assert log()[-1]["needs_restart"] == ["listen.unix"]


async def worker_threads_to_finish() -> None:
    """Let what is read in a worker thread be read: a clock that jumps would not wait for it."""
    for _ in range(50):
        await trio.to_thread.run_sync(int)


async def test_asked_twice_it_reads_the_latest(autojump_clock: trio.testing.MockClock) -> None:
    async with governed() as relay, trio.open_nursery() as nursery:
        reads: list[int] = []

        def reread() -> Config:
            reads.append(1)
            return Config()

        reloading = Reloader(relay.service, reread)
        reloading.ask()
        reloading.ask()
        nursery.start_soon(reloading.run)
        await worker_threads_to_finish()
        assert len(reads) == 1
        reloading.ask()
        await worker_threads_to_finish()
        assert len(reads) == 2
        nursery.cancel_scope.cancel()
