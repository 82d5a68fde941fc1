"""Taking a changed configuration without a restart, and ending what it no longer allows.

On SIGHUP the configuration is read anew. Each part of the relay prepares for it first, in a thread: it reads files and
checks, and touches nothing of the running relay. Only when all are prepared do they take it over, in one synchronous
step; a configuration that can't be used is logged and changes nothing. What only a restart can change is named and
stays as it is, and the whole is checked as it will then be: an address that is still open to the network still needs
a token.

Streams and sockets go on, unless the token they were opened with is gone, has changed in what it reaches, or has
expired: they are closed with the reason (WebSocket code 1008).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING

import structlog
import trio

from aep_relay import logs
from aep_relay.bindings import cards
from aep_relay.bindings.auth import entries
from aep_relay.config import Config, ConfigError, check
from aep_relay.transport.turn import Turn

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import NoReturn

    from aep_relay.bindings.auth import Ending
    from aep_relay.bindings.service import Service

TakeOver = Callable[[], None]
Prepare = Callable[[Config], TakeOver]
"""Checks what a part of the relay needs of a new configuration, raising ``ConfigError``; returns what takes it over."""

EXPIRY_CHECK_SECONDS = 1.0
POLICY_VIOLATION = 1008
"""WebSocket close code (RFC 6455 §7.4.1)."""

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class Reloader:
    """Re-reads the configuration of one running relay when it is asked to."""

    def __init__(self, service: Service, reread: Callable[[], Config]) -> None:
        self._service = service
        self._reread = reread
        self._asked = trio.Event()
        self._endings: list[Ending] = []
        self.begins: Callable[[], None] = lambda: None
        """Told of each re-reading before it begins, as ``ends`` is when it is over."""
        self.ends: Callable[[bool], None] = lambda done: None
        self._parts: list[Prepare] = []
        self._live: set[str] = set()
        self.add(self._prepare_bindings, "auth", "tokens", "cards", "cors", "limits")
        self.add(self._prepare_logs, "log")
        # What is read whenever it is needed.
        self._live |= {"operator.relay_url", "operator.max_loop_latency_seconds"}

    def add(self, prepare: Prepare, *settings: str) -> None:
        """Have a part of the relay take over ``settings``: tables, arrays of tables, or ``table.setting``.

        What no part takes over needs a restart. Parts come in the order in which they were added.
        """
        self._parts.append(prepare)
        self._live.update(settings)

    def ask(self) -> None:
        """Have the configuration re-read; asked twice before it is, it is re-read once."""
        self._asked.set()

    async def run(self) -> NoReturn:
        """Re-read whenever asked, until cancelled."""
        while True:
            await self._asked.wait()
            self._asked = trio.Event()
            self.begins()
            self.ends(await self.reload())

    async def reload(self) -> bool:
        """Re-read the configuration once; False when it can't be used and nothing was changed."""
        running = self._service.config
        try:
            config, fixed, steps = await trio.to_thread.run_sync(
                self._prepare, running, abandon_on_cancel=True
            )
        except ConfigError as error:
            log.error("configuration refused; the old one stays in force", detail=str(error))
            return False
        except Exception:
            # Whatever reading it runs into, those who are connected must not notice.
            log.exception("configuration not read; the old one stays in force")
            return False
        for take_over in steps:
            take_over()
        for warning in config.warnings:
            log.warning("configuration", detail=warning)
        endings, self._endings = self._endings, []
        log.info(
            "configuration reloaded",
            changed=sorted(_differences(running, config)),
            needs_restart=sorted(fixed),
            connections_ended=len(endings),
        )
        await end(self._service, endings)
        return True

    def _prepare(self, running: Config) -> tuple[Config, set[str], list[TakeOver]]:
        """Return the configuration to go on with, what of the one read needs a restart, and the steps that take it."""
        config = self._reread()
        fixed = {name for name in _differences(running, config) if not self._takes_over(name)}
        for name in fixed:
            config = _with_old(config, running, name)
        if fixed:
            config = replace(config, warnings=tuple(dict.fromkeys([*config.warnings, *check(config)])))
        return config, fixed, [prepare(config) for prepare in self._parts]

    def _takes_over(self, setting: str) -> bool:
        return setting in self._live or setting.partition(".")[0] in self._live

    def _prepare_bindings(self, config: Config) -> TakeOver:
        inspector = cards.inspector(config.cards)
        tokens = entries(config.auth, config.tokens)

        def take_over() -> None:
            service = self._service
            service.take_over(config)
            service.inspector = inspector
            self._endings += service.authority.replace(config.auth, tokens)

        return take_over

    def _prepare_logs(self, config: Config) -> TakeOver:
        running = self._service.config
        if (config.log, config.secrets) == (running.log, running.secrets):
            return lambda: None
        # What was a secret once stays out of the logs: somebody may still send it.
        known = dict.fromkeys([*config.secrets, *running.secrets])
        return lambda: logs.configure(config.log.level, config.log.format, sys.stderr, known)


def _differences(one: Config, other: Config) -> set[str]:
    """Return where two configurations differ: ``table.setting``, or the name of an array of tables."""
    found: set[str] = set()
    for part in fields(Config):
        mine, theirs = getattr(one, part.name), getattr(other, part.name)
        if mine == theirs or not part.compare or part.name == "warnings":
            continue
        if not is_dataclass(mine):
            found.add(part.name)
            continue
        settings = (setting.name for setting in fields(mine))
        found |= {f"{part.name}.{name}" for name in settings if getattr(mine, name) != getattr(theirs, name)}
    return found


def _with_old(config: Config, running: Config, setting: str) -> Config:
    """Return ``config`` with ``setting`` as it is in ``running``."""
    part, _, name = setting.partition(".")
    old = getattr(running, part)
    if name:
        old = replace(getattr(config, part), **{name: getattr(old, name)})
    return replace(config, **{part: old})


async def watch_expiry(service: Service) -> NoReturn:
    """End connections when their token expires, until cancelled."""
    while True:
        await trio.sleep(EXPIRY_CHECK_SECONDS)
        await end(service, service.authority.expired())


async def end(service: Service, endings: Iterable[Ending]) -> None:
    """Close connections, each with its reason; others have their turns in between."""
    turn = Turn()
    for connection, reason in endings:
        service.relay.close(connection.peer, reason, POLICY_VIOLATION)
        if turn.over:
            # To work out what was delivered may take some milliseconds each.
            await turn.pass_on()
