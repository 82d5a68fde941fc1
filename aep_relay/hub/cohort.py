"""Cohorts: the connections that are to receive exactly the same live bytes.

A connection's groups and framing decide its cohort, so an Event is framed and queued once for each cohort, however
many connections are in it, and a flush hands one joined run of bytes to each socket. A connection that replays is a
cohort of its own until it has caught up, since what it may be sent live depends on its cursors.

Invariants:

* Batches have numbers; ``peer.seen`` is the number of the last one its connection was handed. Who joins starts at the
  current number behind a sealed batch, who leaves is settled first: nothing is missed and nothing comes twice.
* The open batch is sealed at ``batch_bytes``, so a connection's limits are checked at that grain.
* What is kept of an Event beside its frame does not grow with the number of groups that it serves: beyond a few of them
  it is all the connection's, scope ``ANY``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aep_relay.hub.notices import add_loss
from aep_relay.hub.outbox import ANY, Batch
from aep_relay.hub.positions import before

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from aep_relay.hub.buffer import Lost
    from aep_relay.hub.outbox import Mark
    from aep_relay.hub.peer import Peer
    from aep_relay.hub.subscriptions import Group, Subscription
    from aep_relay.protocol.framing import Framing

MAX_SCOPES = 4
"""An Event that serves more groups of a connection is not told by group, so that the position a ``closing`` frame names
may be lower than it need be: Events come twice then, which is legal, and none is lost (AEP-0003 §5). To remember it for
each group takes many times what small Events take: a consumer that did not read, with 256 subscriptions that all
matched, held 1.8 GiB and the loop for 1.4 to 7.4 s when it was ended; now 60 MiB and 10 to 22 ms."""

MAX_TOLD = 1024
"""Nor are those that come late in a long batch."""


class Cohort:
    """Connections with the same groups and framing, and the batches on their way to them."""

    __slots__ = (
        "_dirty",
        "_group",
        "_session",
        "batch_bytes",
        "ceilings",
        "framing",
        "groups",
        "is_dirty",
        "members",
        "number",
        "open",
        "sealed",
        "solo",
        "tracked",
    )

    def __init__(
        self,
        framing: Framing,
        groups: frozenset[Group],
        *,
        batch_bytes: int,
        tracked: bool,
        dirty: Callable[[Cohort], None],
        solo: Peer | None = None,
    ) -> None:
        self.framing = framing
        self.groups = groups
        self.ceilings = frozenset(group.ceiling for group in groups)
        """Of all of them; as a rule there is one."""
        self.batch_bytes = batch_bytes
        self.tracked = tracked
        """Whether its connections report delivered positions when they end."""
        self.solo = solo
        """The connection that is alone here because it replays."""
        self.members: dict[Peer, None] = {}
        self.open: Batch | None = None
        self.sealed: list[Batch] = []
        self.number = 0
        """Of the newest sealed batch."""
        self.is_dirty = False
        self._dirty = dirty
        self._group = next(iter(groups)) if len(groups) == 1 and solo is None else None
        self._session: str | None = None

    def push(self, frame: bytes, mark: Mark) -> None:
        """Add a framed Event of the cohort's only group."""
        batch = self.open
        if batch is None:
            batch = self._begin()
        batch.frames.append(frame)
        batch.marks.append(mark)
        if self.tracked and mark.session is not self._session:
            session = self._session = mark.session
            if session is not None:
                key = (self._group, session)
                if key not in batch.before:
                    batch.before[key] = self._group.tracks.get(session)  # type: ignore[union-attr]
        size = batch.size_bytes = batch.size_bytes + len(frame)
        if size >= self.batch_bytes:
            self.seal()

    def push_mixed(self, frame: bytes, mark: Mark, groups: Collection[Group]) -> None:
        """Add a framed Event that serves the given ones of the cohort's groups."""
        batch = self.open
        if batch is None:
            batch = self._begin()
        batch.frames.append(frame)
        batch.marks.append(mark)
        scopes = batch.scopes
        if scopes is None:
            scopes = batch.scopes = []
        told = len(groups) <= MAX_SCOPES and len(groups) * len(batch.frames) <= MAX_TOLD
        scopes.append(tuple(groups) if told else _ANY)
        if self.tracked and mark.session is not None:
            if told:
                for group in groups:
                    key = (group, mark.session)
                    if key not in batch.before:
                        batch.before[key] = group.tracks.get(mark.session)
            elif mark.bound is not None and (ANY, mark.session) not in batch.before:
                # Each of them was sent something else. What comes before this Event nobody has yet to be sent.
                highest = before(mark.bound)
                batch.before[(ANY, mark.session)] = None if highest is None else ((mark.stamp, highest),)
        batch.size_bytes += len(frame)
        if batch.size_bytes >= self.batch_bytes:
            self.seal()

    def push_loss(self, frame: bytes, subscription: Subscription, session: str, lost: Lost) -> None:
        """Add what tells a subscription of the only connection that something is gone."""
        batch = self.open
        if batch is None:
            batch = self._begin()
        if batch.scopes is None:
            batch.scopes = []
        batch.scopes.append((subscription,))
        add_loss(batch, frame, subscription, session, lost)
        if batch.size_bytes >= self.batch_bytes:
            self.seal()

    def _begin(self) -> Batch:
        batch = self.open = Batch(self._group)
        self._session = None
        if not self.is_dirty:
            self.is_dirty = True
            self._dirty(self)
        return batch

    def seal(self) -> None:
        """Close the open batch: what comes next is another one's."""
        if self.open is not None:
            self.sealed.append(self.open)
            self.open = None
            self.number += 1

    def join(self, peer: Peer) -> None:
        """Take ``peer`` in; it is handed what comes from now on."""
        self.seal()
        self.members[peer] = None
        peer.cohort = self
        peer.seen = self.number

    def leave(self, peer: Peer) -> None:
        """Let ``peer`` go; the caller has settled it."""
        self.members.pop(peer, None)
        peer.cohort = None

    def settle(self, peer: Peer) -> None:
        """Hand ``peer`` all that was pushed so far, so that what is sent to it next comes after."""
        self.seal()
        if peer.seen != self.number:
            self.hand_over(peer)

    def hand_over(self, peer: Peer) -> None:
        """Hand ``peer`` the sealed batches it has not had."""
        for batch in self.missing(peer):
            peer.seen += 1
            if not peer.take(batch):
                return

    def missing(self, peer: Peer) -> list[Batch]:
        """Return the sealed batches that ``peer`` has not been handed."""
        sealed = self.sealed
        count = self.number - peer.seen
        if count == len(sealed):
            return sealed
        return sealed[len(sealed) - count :] if count else []

    def waiting_bytes(self, peer: Peer) -> int:
        """Return how much was pushed that ``peer`` has not been handed."""
        waiting = sum(batch.size_bytes for batch in self.missing(peer))
        return waiting if self.open is None else waiting + self.open.size_bytes

    def retire(self, number: int) -> None:
        """Forget the batches up to ``number``: every member has been handed them."""
        count = len(self.sealed) - (self.number - number)
        for batch in self.sealed[:count]:
            batch.release()
        del self.sealed[:count]


_ANY = (ANY,)
