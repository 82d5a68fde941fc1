"""Who is subscribed to what: subscriptions come and go, with their groups, their cohorts and what they count for.

Invariants: a group exists as long as a live subscription is in it; a connection's cohort is that of its groups, or its
own while it replays; ``predicates`` is the sum over all connections of what ``counted`` says of each. AEP-0003 §6.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aep_relay.hub import replay
from aep_relay.hub.entitlement import counted
from aep_relay.hub.subscriptions import Subscription
from aep_relay.protocol.framing import Framing

if TYPE_CHECKING:
    from aep_relay.hub.fanout import FanOut
    from aep_relay.hub.peer import Peer
    from aep_relay.hub.replay import From
    from aep_relay.hub.store import Store
    from aep_relay.protocol.filters import Filter


class Membership:
    """The subscriptions of all connections."""

    __slots__ = ("_fanout", "_store", "predicates")

    def __init__(self, fanout: FanOut, store: Store) -> None:
        self._fanout = fanout
        self._store = store
        self.predicates = 0
        """Of the live subscriptions of all connections, what counts toward ``max_predicates``."""

    def add(
        self,
        peer: Peer,
        id_: str,
        filter_: Filter,
        ceiling: int | None,
        from_: From,
        *,
        ends: bool,
        others: bool,
    ) -> None:
        """Give ``peer``, which has been handed all that was published, a subscription in place of one with its id."""
        self._forget(peer, id_)
        subscription = Subscription(id_, filter_, ceiling, self._fanout.stamp)
        subscription.held_bytes = replay.held_bytes(filter_, from_)
        peer.subscriptions[id_] = subscription
        if from_ is not None or ends:
            self._plan_replay(peer, subscription, from_, ends=ends, others=others)
        if not ends:
            self._join_group(peer, subscription)
        self._fanout.place(peer)

    def remove(self, peer: Peer, id_: str) -> None:
        """Take a subscription away from ``peer``, which has been handed all that was published for it."""
        self._fanout.remove(peer)
        self._forget(peer, id_)
        self._fanout.place(peer)

    def release(self, peer: Peer) -> None:
        """Take all subscriptions away from ``peer``."""
        self._fanout.remove(peer)
        for subscription in peer.subscriptions.values():
            self._leave_group(peer, subscription)
        peer.subscriptions.clear()

    def _plan_replay(
        self, peer: Peer, subscription: Subscription, from_: From, *, ends: bool, others: bool
    ) -> None:
        planned, base = replay.plan(self._store, subscription.filter, from_, ends=ends, others=others)
        grants = peer.grants
        if grants is not None and (others or from_ == "all"):
            for session in [name for name in planned.behind if not grants.may_see(name)]:
                del planned.behind[session]
        subscription.replay = planned
        if peer.framing is Framing.WEBSOCKET:
            subscription.base = base

    def _join_group(self, peer: Peer, subscription: Subscription) -> None:
        group = self._fanout.index.group(subscription.filter, subscription.ceiling)
        group.count += 1
        if peer.framing is Framing.WEBSOCKET:
            group.tracked += 1
        subscription.group = group
        self._weigh(peer, subscription.filter.weight)

    def _leave_group(self, peer: Peer, subscription: Subscription) -> None:
        group = subscription.group
        if group is None:
            return
        subscription.group = None
        self._weigh(peer, -subscription.filter.weight)
        group.count -= 1
        if peer.framing is Framing.WEBSOCKET:
            group.tracked -= 1
            if not group.tracked:
                group.tracks.clear()
        if not group.count:
            self._fanout.index.discard(group)

    def _weigh(self, peer: Peer, change: int) -> None:
        before = counted(peer.predicates)
        peer.predicates += change
        self.predicates += counted(peer.predicates) - before

    def _forget(self, peer: Peer, id_: str) -> None:
        old = peer.subscriptions.pop(id_, None)
        if old is not None:
            self._leave_group(peer, old)
