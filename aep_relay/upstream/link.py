"""A link to an upstream: connect, hold, break, wait, and again; what is known of it for logs, health and listings.

Invariants: a link never ends by itself and never takes the relay with it; whatever breaks it is a ``Down``, and what
is none is logged as a fault and treated like one. Between attempts it waits with full jitter, and long where it would
close a circle.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Protocol

import trio

from aep_relay.protocol.reporting import Reports
from aep_relay.upstream.backoff import Backoff
from aep_relay.upstream.errors import LOOP, REFUSED, UNREACHABLE, Down, first
from aep_relay.upstream.liveness import Liveness
from aep_relay.upstream.socket import open_socket

if TYPE_CHECKING:
    import structlog

    from aep_relay.config import Upstream
    from aep_relay.hub.limits import Limits
    from aep_relay.hub.relay import Relay
    from aep_relay.upstream.dial import Dial
    from aep_relay.upstream.socket import Socket

CONNECTING = "connecting"
UP = "up"
STOPPED = "stopped"
STATES = {UNREACHABLE: "down", REFUSED: "refused", LOOP: "loop"}
"""By the reason for which a link is down; for any other, ``down``."""


class Host(Protocol):
    """The running relay (``bindings.service.Service``)."""

    @property
    def relay(self) -> Relay:
        """The hub."""

    @property
    def limits(self) -> Limits:
        """Its limits."""

    @property
    def log(self) -> structlog.typing.FilteringBoundLogger:
        """Its log."""

    async def flush(self) -> None:
        """Hand what was ingested to the sockets."""


class Link(ABC):
    """One direction of one upstream."""

    kind = ""

    def __init__(self, host: Host, upstream: Upstream, dial: Dial) -> None:
        self.host = host
        self.relay = host.relay
        self.upstream = upstream
        self.dial = dial
        self.name = upstream.name if upstream.mode != "both" else f"{upstream.name}-{self.kind}"
        self.id = f"{host.relay.instance}/{upstream.name}"
        """Names the link to other relays, the same for both directions."""
        self.log = self._named(dial)
        self.state = CONNECTING
        self.detail = ""
        self.path: str | None = None
        """The circle that it would close."""
        self.since = trio.current_time()
        self.attempts = 0
        self.times_up = 0
        self._backoff = self.backoff()
        self._told: tuple[str, str] | None = None
        self._reports = Reports()
        self._stopping = trio.CancelScope()
        self._current = trio.CancelScope()
        """Of one attempt, with the pause behind it."""

    def _named(self, dial: Dial) -> structlog.typing.FilteringBoundLogger:
        return self.host.log.bind(upstream=self.name, kind=self.kind, url=dial.target.url)

    def backoff(self) -> Backoff:
        """Return pauses as they are configured."""
        upstream = self.upstream
        return Backoff(upstream.retry_min_seconds, upstream.retry_max_seconds, upstream.stable_seconds)

    async def run(self) -> None:
        """Keep the link up until ``stop``."""
        try:
            with self._stopping:
                while True:
                    with trio.CancelScope() as self._current:
                        self._enter(CONNECTING, self.detail)
                        self.attempts += 1
                        down = await self._attempt()
                        await trio.sleep(self._pause_seconds(down))
        finally:
            self._report_rest()
            self._enter(STOPPED, "")

    def stop(self) -> None:
        """End the link for good."""
        self._stopping.cancel()

    def change(self, upstream: Upstream, dial: Dial) -> None:
        """Go on with other settings, of the same name and mode; where any has changed, with a new connection."""
        before, self.upstream, self.dial = self.upstream, upstream, dial
        if upstream == before:
            return
        self.log = self._named(dial)
        self._backoff = self.backoff()
        self._told = None
        self.detail = ""
        self.reconfigure(before)
        self._current.cancel()

    @abstractmethod
    def reconfigure(self, before: Upstream) -> None:
        """Take over what ``upstream`` says and ``before`` did not."""

    @abstractmethod
    def withdraw(self) -> None:
        """Be told of nothing new any more."""

    @abstractmethod
    async def drain(self) -> None:
        """Wait until all that is owed has been confirmed; at once where the link is down."""

    async def retire(self, seconds: float) -> None:
        """End the link for good, once it has done what it can within ``seconds``."""
        try:
            with trio.move_on_after(seconds):
                await self.drain()
        finally:
            self.stop()

    @abstractmethod
    async def session(self) -> None:
        """Connect and hold until something breaks; calls ``is_up`` in between. Raises ``Down``."""

    async def _attempt(self) -> Down:
        try:
            await self.session()
            down = Down(UNREACHABLE, "the connection ended")
        except* Down as group:
            down = first(group)
        except* Exception:
            self.log.exception("upstream link failed")
            down = Down(UNREACHABLE, "an internal error; see the log")
        self._report_rest()
        if self.state == UP:
            self._backoff.held(trio.current_time() - self.since)
        self._enter(STATES.get(down.reason, "down"), down.detail)
        self.path = self.path if down.reason == LOOP else None
        said = (down.reason, down.detail)
        tell = self.log.debug if said == self._told else self.log.warning
        self._told = said
        tell("upstream down", reason=down.reason, detail=down.detail, path=self.path)
        return down

    def _pause_seconds(self, down: Down) -> float:
        if down.reason == LOOP:
            return self._backoff.slow_seconds()
        asked_seconds = min(down.wait_seconds, self.upstream.retry_max_seconds)
        return max(asked_seconds, self._backoff.next_seconds())

    def is_up(self) -> None:
        """Note that the link is established."""
        self.times_up += 1
        self.path = self._told = None
        self._enter(UP, "")
        self.log.info("upstream up", attempts=self.attempts)

    def warn(self, text: str, **facts: object) -> None:
        """Log what an upstream can bring about any number of times: some of it, and then how much more there was."""
        now = trio.current_time()
        self._report_rest(now)
        if self._reports.admit(text, now):
            self.log.warning(text, **facts)

    def _report_rest(self, now: float | None = None) -> None:
        rest = self._reports.take(now)
        if rest is not None:
            self.log.warning("more like this left out", records=rest.lines)

    def circle(self, path: tuple[str, ...]) -> Down:
        """Return why the link may not be: it would close the circle ``path``."""
        self.path = self.relay.feeders.found(path)
        return Down(LOOP, f"the relays would feed each other in a circle: {self.path}")

    def liveness(self, socket: Socket) -> Liveness:
        """Return what sees to it that the upstream is there."""
        return Liveness(
            socket,
            interval_seconds=self.host.limits.ping_interval_seconds,
            answer_seconds=self.upstream.answer_timeout_seconds,
        )

    async def open(self, hello: dict[str, object]) -> tuple[Socket, dict[str, object]]:
        """Open a WebSocket to the upstream; return it with the upstream's hello. Raises ``Down``."""
        return await open_socket(
            self.dial,
            hello,
            token=self.upstream.token,
            seconds=self.upstream.connect_timeout_seconds,
            send_timeout_seconds=self.upstream.answer_timeout_seconds,
            max_message_bytes=self.host.limits.max_body_bytes,
        )

    def _enter(self, state: str, detail: str) -> None:
        self.state, self.detail, self.since = state, detail, trio.current_time()

    def describe(self) -> dict[str, object]:
        """Return what there is to know, as JSON: ``state`` is ``up`` if it is."""
        found: dict[str, object] = {
            "name": self.name,
            "kind": self.kind,
            "url": self.dial.target.url,
            "state": self.state,
            "detail": self.detail,
            "for_seconds": round(trio.current_time() - self.since, 1),
            "attempts": self.attempts,
            "times_up": self.times_up,
        }
        if self.path is not None:
            found["path"] = self.path
        return found
