"""All links of one relay: built from its configuration, run beside its connections, ended after them.

Invariants: a changed configuration is checked whole before any of it is taken over; a link whose settings have not
changed does not notice, one of the same name and mode goes on with the new ones and whatever it still owes.
"""

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

    from aep_relay.config import Config, Upstream
    from aep_relay.upstream.dial import Dial
    from aep_relay.upstream.link import Host, Link

REPORT_SECONDS: Final = 60.0
RETIRE_SECONDS: Final = 2.0
"""For what a link that is taken away still owes."""


def check(upstreams: Iterable[Upstream]) -> None:
    """Read the files that ``upstreams`` name. Raises ``ConfigError`` for certificates that are none."""
    for upstream in upstreams:
        _dialler(upstream, Dialler)


def _dialler(upstream: Upstream, dial: Callable[[Upstream], Dial]) -> Dial:
    try:
        return dial(upstream)
    except (OSError, ValueError) as error:
        raise ConfigError(f"upstream {upstream.name}", f"its certificates cannot be used: {error}") from None


class Chain:
    """The links that ``upstreams`` call for. Raises ``ConfigError`` for certificate files that are none."""

    def __init__(
        self, host: Host, upstreams: Iterable[Upstream], *, dial: Callable[[Upstream], Dial] = Dialler
    ) -> None:
        self._host = host
        self._dial = dial
        self._links: dict[str, list[Link]] = {}
        self._nursery: trio.Nursery | None = None
        self._finishing = trio.Event()
        self._over = trio.Event()
        for upstream in upstreams:
            self._add(upstream, _dialler(upstream, dial))

    @property
    def links(self) -> list[Link]:
        """Every link."""
        return [link for links in self._links.values() for link in links]

    @property
    def pushes(self) -> list[PushLink]:
        """Those that take Events up."""
        return [link for link in self.links if isinstance(link, PushLink)]

    @property
    def pulls(self) -> list[PullLink]:
        """Those that bring Events down."""
        return [link for link in self.links if isinstance(link, PullLink)]

    def describe(self) -> list[dict[str, object]]:
        """Return what there is to know of each link, as JSON."""
        return [link.describe() for link in self.links]

    def _add(self, upstream: Upstream, dial: Dial) -> list[Link]:
        echoes = Echoes() if upstream.pushes and upstream.pulls else None
        links: list[Link] = []
        pull = PullLink(self._host, upstream, dial, echoes) if upstream.pulls else None
        if upstream.pushes:
            links.append(PushLink(self._host, upstream, dial, pull, echoes))
        if pull is not None:
            links.append(pull)
        self._links[upstream.name] = links
        return links

    # Another configuration

    def prepare(self, config: Config) -> Callable[[], None]:
        """Check ``config.upstreams`` and return what takes them over (``reload.Prepare``). Raises ``ConfigError``."""
        # Certificates are read again even where their names are the same: that is how they are renewed.
        wanted = [(upstream, _dialler(upstream, self._dial)) for upstream in config.upstreams]
        return lambda: self._take_over(wanted)

    def _take_over(self, wanted: list[tuple[Upstream, Dial]]) -> None:
        modes = {upstream.name: upstream.mode for upstream, _ in wanted}
        for name, links in list(self._links.items()):
            if links[0].upstream.mode != modes.get(name):
                del self._links[name]
                self._retire(links)
        for upstream, dial in wanted:
            links = self._links.get(upstream.name, [])
            for link in links:
                link.change(upstream, dial)
            if not links:
                self._start(self._add(upstream, dial))
        self._links = {name: self._links[name] for name in modes}

    def _retire(self, links: list[Link]) -> None:
        for link in links:
            link.withdraw()
            if self._nursery is not None:
                self._nursery.start_soon(link.retire, RETIRE_SECONDS)

    def _start(self, links: list[Link]) -> None:
        if self._nursery is not None:
            for link in links:
                self._nursery.start_soon(link.run)

    # Running

    async def run(self) -> None:
        """Keep every link up, until ``finish`` or cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._report)
                async with trio.open_nursery() as links:
                    self._nursery = links
                    self._start(self.links)
                    await self._finishing.wait()
                nursery.cancel_scope.cancel()
        finally:
            self._nursery = None
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
                for link in self.links:
                    nursery.start_soon(link.drain)
        finally:
            self._finishing.set()
            for link in self.links:
                link.stop()
            for push in self.pushes:
                push.report()
        await self._over.wait()
