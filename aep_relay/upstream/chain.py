"""All links of one relay: built from its configuration, run beside its connections, ended after them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from aep_relay.config import ConfigError
from aep_relay.upstream.dial import Dialler
from aep_relay.upstream.echoes import Echoes
from aep_relay.upstream.pull import PullLink
from aep_relay.upstream.push import PushLink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import NoReturn

    from aep_relay.config import Upstream
    from aep_relay.upstream.dial import Dial
    from aep_relay.upstream.link import Host, Link

REPORT_SECONDS: Final = 60.0


class Chain:
    """The links that ``upstreams`` call for. Raises ``ConfigError`` for certificate files that are none."""

    def __init__(
        self, host: Host, upstreams: Iterable[Upstream], *, dial: Callable[[Upstream], Dial] = Dialler
    ) -> None:
        self.pushes: list[PushLink] = []
        self.pulls: list[PullLink] = []
        self._over = trio.Event()
        for upstream in upstreams:
            try:
                dialler = dial(upstream)
            except (OSError, ValueError) as error:
                raise ConfigError(
                    f"upstream {upstream.name}", f"its certificates cannot be used: {error}"
                ) from None
            echoes = Echoes() if upstream.pushes and upstream.pulls else None
            pull = PullLink(host, upstream, dialler, echoes) if upstream.pulls else None
            if pull is not None:
                self.pulls.append(pull)
            if upstream.pushes:
                self.pushes.append(PushLink(host, upstream, dialler, pull, echoes))

    @property
    def links(self) -> list[Link]:
        """Every link."""
        return [*self.pushes, *self.pulls]

    def describe(self) -> list[dict[str, object]]:
        """Return what there is to know of each link, as JSON."""
        return [link.describe() for link in self.links]

    async def run(self) -> None:
        """Keep every link up, until ``finish`` or cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._report)
                async with trio.open_nursery() as links:
                    for link in self.links:
                        links.start_soon(link.run)
                nursery.cancel_scope.cancel()
        finally:
            self._over.set()

    async def _report(self) -> NoReturn:
        while True:
            await trio.sleep(REPORT_SECONDS)
            for push in self.pushes:
                push.report()

    async def finish(self) -> None:
        """Push what is left, as far as that is possible before the caller's deadline, and end every link."""
        try:
            async with trio.open_nursery() as nursery:
                for push in self.pushes:
                    nursery.start_soon(push.drain)
        finally:
            for link in self.links:
                link.stop()
            for push in self.pushes:
                push.report()
        await self._over.wait()
