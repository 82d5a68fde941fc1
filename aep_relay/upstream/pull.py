"""Pull: what an upstream has comes down, and commands for its sessions go up.

One WebSocket subscribes; its Events are taken over as accepted and routed already. Invariants: what is above the
ceiling or beside the filter does not enter, whatever the upstream does with them. What the upstream says it has lost is
lost here as well, exactly. A replay of what is held already is shown to nobody a second time.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

import msgspec
import trio

from aep_relay.hub import feeders
from aep_relay.protocol import filters, frames
from aep_relay.protocol.capture import downlevel
from aep_relay.protocol.errors import ProtocolError
from aep_relay.protocol.event import Event, Shape, decode
from aep_relay.protocol.framing import Framing
from aep_relay.protocol.jsontext import exact_integer
from aep_relay.protocol.position import MAX_POSITION
from aep_relay.protocol.registry import CAPTURE_RANK
from aep_relay.transport import large
from aep_relay.transport.turn import Turn
from aep_relay.upstream import announcing
from aep_relay.upstream.errors import LOOP, REFUSED, Down, first
from aep_relay.upstream.forwarding import Forwarding
from aep_relay.upstream.link import Link
from aep_relay.upstream.resume import Resume

if TYPE_CHECKING:
    from typing import NoReturn

    from aep_relay.config import Upstream
    from aep_relay.hub.feeders import Announcement
    from aep_relay.hub.peer import Peer
    from aep_relay.protocol.position import Position
    from aep_relay.upstream.dial import Dial
    from aep_relay.upstream.echoes import Echoes
    from aep_relay.upstream.link import Host
    from aep_relay.upstream.liveness import Liveness
    from aep_relay.upstream.resume import From
    from aep_relay.upstream.socket import Socket

SUBSCRIPTION: Final = "pull"
BEGUN: Final = "begun"
"""A second subscription, for a while: of sessions that began while the link was down, to a foreign relay."""
BEGUN_SECONDS: Final = 10.0
"""Having brought nothing for so long, it has brought all."""
POLICY_VIOLATION: Final = 1008
_EVENT: Final = b'{"aep":'
"""How most Events begin, and no frame does."""


class PullLink(Link):
    """Pulls from one upstream. The sink of the peer as which it stands in the hub."""

    kind = "pull"

    def __init__(self, host: Host, upstream: Upstream, dial: Dial, echoes: Echoes | None = None) -> None:
        super().__init__(host, upstream, dial)
        self._configure()
        self._echoes = echoes
        """What this relay sent up the same link, and comes down again."""
        self.resume = Resume(self.relay.store)
        self.forwarding = Forwarding(self.relay, has_token=upstream.token is not None)
        self.peer: Peer | None = None
        """Under which what comes is taken in; None while the link is down."""
        self.pulled_events = 0
        self.known_events = 0
        self.invalid_events = 0
        self.exhausted_sessions = 0
        self.relay.uplinks.append(self.forwarding)

    def _configure(self) -> None:
        filter_, capture = filters.parse_json(self.upstream.filter), self.upstream.capture
        self._matches = None if filter_ == filters.EMPTY else filter_.matches
        self._filter_json = msgspec.Raw(self.upstream.filter.encode())
        self._ceiling = None if capture is None else CAPTURE_RANK[capture]

    @property
    def has_ceiling(self) -> bool:
        """Whether what comes is down-leveled before it is taken in."""
        return self._ceiling is not None

    def reconfigure(self, before: Upstream) -> None:
        """Take over what ``upstream`` says and ``before`` did not (``Link``)."""
        now = self.upstream
        self._configure()
        self.forwarding.has_token = now.token is not None
        if (now.url, now.unix, now.filter) != (before.url, before.unix, before.filter):
            # It may hold what the other one did not, or what the filter left out: all of it is asked for.
            self.resume = Resume(self.relay.store)

    def withdraw(self) -> None:
        """Send no more commands up (``Link``)."""
        self.relay.uplinks.remove(self.forwarding)

    async def drain(self) -> None:
        """Return at once: nothing is owed (``Link``)."""
        await trio.lowlevel.checkpoint()

    def close(self, reason: str, code: int) -> None:
        """End the link: the relay is on its way out (``Sink``)."""
        self.stop()

    def abort(self, reason: str) -> None:
        """End the link (``Sink``)."""
        self.stop()

    def send(self, data: bytes | memoryview) -> int:
        """Take nothing: nobody subscribes for it (``Sink``)."""
        return len(data)

    def wake(self) -> None:
        """Do nothing: it is sent nothing (``Sink``)."""

    async def session(self) -> None:
        """Subscribe, and take in what comes. Raises ``Down``."""
        own: dict[str, object] = {"relay": self.relay.instance, "link": self.id}
        socket, said = await self.open(announcing.hello(self.relay.instance, own))
        connection = Connection(self, socket, said)
        reason = "link-down"
        try:
            peer = self.peer = self.relay.attach("upstream", Framing.WEBSOCKET, self)
            peer.greeted = False
            peer.role, peer.name = "emitter", self.dial.target.url
            await connection.hold()
        except* Down as group:
            reason = LOOP if first(group).reason == LOOP else reason
            raise
        finally:
            if self.peer is not None:
                self.relay.detach(self.peer)
                self.peer = None
            await socket.close(POLICY_VIOLATION if reason == LOOP else 1000, reason)

    # What comes

    def take(self, event: Event) -> None:
        """Take in an Event that has come down."""
        if self._ceiling is not None and event.capture > self._ceiling:
            event = decode(
                downlevel(event, self._ceiling, self.relay.redact), self.host.limits.max_event_bytes
            )
        peer = self.peer
        if peer is None or (self._matches is not None and not self._matches(event)):
            return
        if event.position is None:
            known = self._is_echo(event) or not self.resume.is_new(event)
        else:
            known = not self.resume.is_new(event) or self._comes_back(event)
        if known:
            self.known_events += 1
            return
        self.pulled_events += 1
        peer.received_events += 1
        if event.session is not None:
            self.forwarding.fed(event.session)
        self.relay.take_over(event, peer)

    def _is_echo(self, event: Event) -> bool:
        """Say whether ``event``, which has no position, is shown here by the other direction of the link."""
        if self._echoes is None:
            return False
        if self._echoes.is_one(event):
            return True
        # A command to an emitter that is mirrored comes down to its mirror as well.
        return event.shape is Shape.COMMAND and bool(self.relay.claims.of(event.session or ""))

    def _comes_back(self, event: Event) -> bool:
        """Say whether ``event`` is one that an emitter here was seen to send, and its mirror sent once more."""
        if self._echoes is None or not self.relay.claims.of(event.session or ""):
            return False
        return self.relay.store.holds(event)

    def lost(self, session: str, earliest: Position) -> None:
        """Note that the upstream has nothing of ``session`` from before ``earliest`` any more (AEP-0003 §5)."""
        self.exhausted_sessions += 1
        self.warn("upstream has lost Events", session=session, earliest=f"{earliest[0]}:{earliest[1]}")
        self.relay.store.lose(session, earliest)

    def subscription(self, id_: str, from_: From, *, others: bool) -> dict[str, object]:
        """Return the request for what this link is to have (AEP-0003 §6.5)."""
        frame: dict[str, object] = {"type": "subscribe", "id": id_, "filter": self._filter_json}
        if from_ is not None:
            frame["from"] = from_
        if self.upstream.capture is not None:
            frame["capture"] = self.upstream.capture
        if others:
            frame["experimental"] = {"others": "all"}
        return frame

    def describe(self) -> dict[str, object]:
        """Return what there is to know, counters included."""
        return {
            **super().describe(),
            "pulled_events": self.pulled_events,
            "known_events": self.known_events,
            "invalid_events": self.invalid_events,
            "exhausted_sessions": self.exhausted_sessions,
            "forwarded_commands": self.forwarding.forwarded_commands,
        }


class Connection:
    """One connection of a pull, past its hello."""

    def __init__(self, link: PullLink, socket: Socket, said: dict[str, object]) -> None:
        self._link = link
        self._socket = socket
        self._other: Announcement | None = announcing.announced(said, link.id)
        self._offers_all = announcing.offers_all(said)
        self._offers_others = announcing.offers_others(said)
        self._requests = link.resume.requests(all_offered=self._offers_all)
        self._instance = announcing.instance(said)
        self._asked: From = None
        self._liveness: Liveness = link.liveness(socket)
        self._nursery: trio.Nursery | None = None
        self._is_subscribed = False
        self._looks_again = False

    async def hold(self) -> None:
        """Hold the connection until it breaks, which raises ``Down``."""
        known = self._link.relay.feeders
        try:
            self._judge(at_once=True)
            await self._ask(self._requests.pop(0))
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self._liveness.watch)
                nursery.start_soon(self._receive)
        finally:
            known.forget(self)

    async def _receive(self) -> NoReturn:
        link = self._link
        while True:
            texts = await self._socket.receive()
            turn = Turn()
            for text in texts:
                message = self._message(text)
                if isinstance(message, Event) and len(text) < large.LARGE_BYTES:
                    # Nearly all that comes: without a coroutine.
                    link.take(message)
                elif message is not None:
                    await self._handle(message, text)
                # Whatever it was: what is no Event takes its time as well.
                if turn.over or link.relay.crowded:
                    await link.host.flush()
                    await turn.pass_on()
            await link.host.flush()

    def _message(self, text: bytes) -> Event | dict[str, object] | None:
        """Return what ``text`` is; None, and it is counted, where it is nothing."""
        limits = self._link.host.limits
        try:
            if text.startswith(_EVENT):
                return decode(text, limits.max_event_bytes)
            return frames.parse(text, limits.max_event_bytes, limits.max_frame_bytes)
        except ProtocolError:
            self._link.invalid_events += 1
            return None

    async def _handle(self, message: Event | dict[str, object], text: bytes) -> None:
        link = self._link
        if not isinstance(message, Event):
            await self._frame(message, text)
            return
        if not link.has_ceiling:
            await large.prepare(link.relay.fanout, message)
        link.take(message)

    async def _frame(self, frame: dict[str, object], text: bytes) -> None:
        kind = frame["type"]
        if kind == "error":
            await self._error(frame, text)
        elif kind == "subscribed" and frame.get("id") == SUBSCRIPTION:
            await self._subscribed()
        elif kind == "replay-exhausted":
            session, earliest = frame.get("session"), _position(frame.get("earliest"))
            if isinstance(session, str) and earliest is not None and frame.get("sub") == SUBSCRIPTION:
                self._link.lost(session, earliest)
        elif kind == "closing":
            await self._closing(frame)
        elif kind == feeders.NAME:
            announcement = feeders.parse({**frame, "link": self._link.id})
            if announcement is not None:
                self._other = announcement
                self._judge(at_once=False)
        else:
            await self._liveness.frame(frame)

    # The subscription

    async def _ask(self, from_: From) -> None:
        self._asked = from_
        self._link.resume.begin(from_, self._instance)
        others = self._offers_others and isinstance(from_, list)
        await self._socket.send_frame(self._link.subscription(SUBSCRIPTION, from_, others=others))

    async def _subscribed(self) -> None:
        link, nursery = self._link, self._nursery
        if nursery is not None and not self._is_subscribed:
            # Whoever says so once more starts nothing.
            self._is_subscribed = True
            link.is_up()
            nursery.start_soon(link.forwarding.send, self._socket)
            if isinstance(self._asked, list) and self._offers_all and not self._offers_others:
                nursery.start_soon(self._search)

    async def _search(self) -> None:
        """Ask a foreign relay for all it holds, for the sessions that began while the link was down."""
        link = self._link
        link.resume.search()
        await self._socket.send_frame(link.subscription(BEGUN, "all", others=False))
        replayed = -1
        while replayed != link.resume.replayed:
            replayed = link.resume.replayed
            await trio.sleep(BEGUN_SECONDS)
        await self._socket.send_frame({"type": "unsubscribe", "id": BEGUN})
        link.resume.found()

    async def _error(self, frame: dict[str, object], text: bytes) -> None:
        """Ask for less if the request was refused; hand a refused command back."""
        cause, id_, code, detail = (frame.get(name) for name in ("cause", "id", "code", "detail"))
        if isinstance(cause, str):
            self._link.forwarding.refused(cause, text)
        elif id_ == SUBSCRIPTION:
            refusal = f"subscription refused: {code}: {detail}"
            fewer = self._link.resume.fewer(self._asked, str(detail)) if code == "limit-exceeded" else None
            if code not in ("limit-exceeded", "invalid-filter") or (fewer is None and not self._requests):
                raise Down(REFUSED, refusal)
            self._link.log.warning("upstream replays less", detail=refusal)
            await self._ask(self._requests.pop(0) if fewer is None else fewer)

    async def _closing(self, frame: dict[str, object]) -> None:
        """Note what the upstream says it has sent, before it ends the connection (AEP-0003 §3.5.4)."""
        delivered, turn = frame.get("delivered"), Turn()
        for entry in delivered if isinstance(delivered, list) else ():
            session, position = entry.get("session") if isinstance(entry, dict) else None, _position(entry)
            if isinstance(session, str) and position is not None and entry.get("sub") == SUBSCRIPTION:
                self._link.resume.delivered(session, position)
            if turn.over:
                await turn.pass_on()

    # Who feeds whom

    def _judge(self, *, at_once: bool) -> None:
        """Know who feeds this relay over this link. Raises ``Down`` if it is this relay itself."""
        if self._other is None:
            return
        known = self._link.relay.feeders
        path = known.circle(self._other)
        if path is not None and (at_once or known.goes_first(path)):
            raise self._link.circle(path)
        known.learn(self, self._other)
        if path is not None and self._nursery is not None and not self._looks_again:
            # One look is enough, however often the upstream changes what it says meanwhile.
            self._looks_again = True
            self._nursery.start_soon(self._look_again)

    async def _look_again(self) -> None:
        await trio.sleep(feeders.SECOND_LOOK_SECONDS * (1 + random.random()))  # noqa: S311  # no secret
        self._looks_again = False
        if self._other is not None:
            path = self._link.relay.feeders.circle(self._other)
            if path is not None:
                raise self._link.circle(path)


def _position(value: object) -> Position | None:
    """Return the position that an object holds as ``epoch`` and ``seq``, None where it holds none."""
    if not isinstance(value, dict):
        return None
    epoch, seq = exact_integer(value.get("epoch", 0)), exact_integer(value.get("seq"))
    if epoch is None or seq is None or not (0 <= epoch <= MAX_POSITION and 0 <= seq <= MAX_POSITION):
        return None
    return epoch, seq
