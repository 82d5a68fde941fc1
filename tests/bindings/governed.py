"""A relay with several tokens, in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from hashlib import sha256
from typing import Any

import trio

from aep_relay import reload
from aep_relay.bindings.auth import Authority, entries
from aep_relay.config import Config, Token
from tests.bindings.served import Served

NOW = 1_800_000_000.0


def token(name: str, *grants: str, secret: str | None = None, **more: Any) -> Token:
    """A token whose text is its name, unless ``secret`` says otherwise."""
    return Token(name=name, grants=grants, sha256=sha256((secret or name).encode()).hexdigest(), **more)


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


class Governed(Served):
    """Tokens can be replaced, and ``now`` is the time of day by which they expire."""

    def __init__(self, nursery: trio.Nursery, config: Config) -> None:
        super().__init__(nursery, config)
        self.now = NOW
        self.service.authority = Authority(config.auth, config.tokens, clock=lambda: self.now)

    async def replace(self, *tokens: Token, **auth: Any) -> list[str]:
        """Take other tokens over; return why connections ended."""
        changed = replace(self.service.config.auth, **auth)
        endings = self.service.authority.replace(changed, entries(changed, tokens))
        await reload.end(self.service, endings)
        return sorted(reason for _, reason in endings)


@asynccontextmanager
async def governed(*tokens: Token, config: Config | None = None) -> AsyncIterator[Governed]:
    """Serve with ``tokens``."""
    async with trio.open_nursery() as nursery:
        yield Governed(nursery, replace(config or Config(), tokens=tokens))
        nursery.cancel_scope.cancel()
