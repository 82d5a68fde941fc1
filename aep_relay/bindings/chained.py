"""What a connection of another relay's link adds to a WebSocket: both sides tell who feeds them (``hub.feeders``).

A relay that pushes here announces who feeds it: if this relay is among them, the connection is closed with the reason
``loop``. One that pulls from here is told who feeds this relay, and of every change, and decides itself. A peer that
has not announced itself hears nothing of all this.

When a circle is closed in several places at once, every relay in it finds itself. Then the one with the least id goes
first, and the others look again a moment later, so that no more links end than have to.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

import msgspec
import trio

from aep_relay.hub import feeders
from aep_relay.protocol import frames

if TYPE_CHECKING:
    from typing import NoReturn

    from aep_relay.bindings.service import Service
    from aep_relay.hub.feeders import Announcement
    from aep_relay.hub.peer import Peer
    from aep_relay.protocol.hello import Hello

LOOP: Final = "loop"
"""Why the connection of a link that would close a circle ends."""
POLICY_VIOLATION: Final = 1008


def of(service: Service, nursery: trio.Nursery, peer: Peer, hello: Hello) -> Chained | None:
    """Return what ``hello`` makes of the connection of ``peer``: None unless a relay announces itself in it."""
    experimental = hello.capabilities.get("experimental")
    if not isinstance(experimental, dict):
        return None
    announcement = feeders.parse(experimental.get(feeders.NAME))
    return None if announcement is None else Chained(service, nursery, peer, announcement)


class Chained:
    """A link's connection, at the relay that it leads to."""

    __slots__ = ("_announcement", "_looks_again", "_nursery", "_outdated", "_peer", "_service", "_told")

    def __init__(
        self, service: Service, nursery: trio.Nursery, peer: Peer, announcement: Announcement
    ) -> None:
        self._service = service
        self._nursery = nursery
        self._peer = peer
        self._announcement = announcement
        self._told: dict[str, object] = {}
        self._outdated = trio.Event()
        self._looks_again = False

    def capabilities(self) -> dict[str, object]:
        """Return this relay's capabilities, with who feeds it."""
        self._told = self._service.relay.feeders.announcement(self._announcement.link)
        experimental = {feeders.NAME: {**self._told, "others": True}}
        return {**self._service.capabilities, "experimental": experimental}

    def begin(self) -> None:
        """Judge what was announced, when hello has been answered; tell of changes from now on."""
        if self._announcement.fed_by is None:
            self._service.relay.feeders.watchers.append(self._note_change)
            self._nursery.start_soon(self._keep_telling)
        else:
            self._judge(at_once=True)

    def changed(self, frame: dict[str, object]) -> None:
        """Judge a changed announcement; one that is malformed changes nothing."""
        announcement = feeders.parse({**frame, "link": self._announcement.link})
        if announcement is not None and announcement.fed_by is not None:
            self._announcement = announcement
            self._judge(at_once=False)

    def end(self) -> None:
        """Forget what was announced: the connection is over."""
        known = self._service.relay.feeders
        known.forget(self)
        if self._note_change in known.watchers:
            known.watchers.remove(self._note_change)

    def _note_change(self) -> None:
        self._outdated.set()

    async def _keep_telling(self) -> NoReturn:
        """Tell of changes as they come, several at a time; one connection after the other, with others in between."""
        while True:
            await self._outdated.wait()
            async with self._service.telling:
                self._outdated = trio.Event()
                self._tell()

    def _tell(self) -> None:
        now = self._service.relay.feeders.announcement(self._announcement.link)
        if now != self._told:
            self._told = now
            self._peer.push(frames.text_frame(msgspec.json.encode({"type": feeders.NAME, **now})))

    def _judge(self, *, at_once: bool) -> None:
        grants = self._peer.grants
        if self._peer.closing is not None or (grants is not None and not grants.emit):
            # Nothing that it could send would be taken.
            return
        known = self._service.relay.feeders
        path = known.circle(self._announcement)
        if path is not None and (at_once or known.goes_first(path)):
            self._refuse(path)
            return
        known.learn(self, self._announcement)
        if path is not None and not self._looks_again:
            # One look is enough, however often a peer changes what it says meanwhile.
            self._looks_again = True
            self._nursery.start_soon(self._look_again)

    async def _look_again(self) -> None:
        await trio.sleep(feeders.SECOND_LOOK_SECONDS * (1 + random.random()))  # noqa: S311  # no secret
        self._looks_again = False
        if self._peer.closing is None:
            path = self._service.relay.feeders.circle(self._announcement)
            if path is not None:
                self._refuse(path)

    def _refuse(self, path: tuple[str, ...]) -> None:
        relay = self._service.relay
        circle = relay.feeders.found(path)
        self._service.log.warning(
            "loop refused", path=circle, connection=self._peer.id, remote=self._peer.name
        )
        relay.feeders.forget(self)
        relay.close(self._peer, LOOP, POLICY_VIOLATION)
