"""Which subscriptions a connection may have: none beyond its token, and none beyond a limit (AEP-0003 §6.5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aep_relay.hub.replay import CURSOR_BYTES, held_bytes
from aep_relay.protocol.errors import Refusal

if TYPE_CHECKING:
    from aep_relay.hub.limits import Limits
    from aep_relay.hub.peer import Peer
    from aep_relay.hub.replay import From
    from aep_relay.hub.subscriptions import Subscription
    from aep_relay.protocol.filters import Filter


FREE_PREDICATES: Final = 2
"""What each connection may have however many there are already: nobody can take the last from who wants one filter."""


def counted(predicates: int) -> int:
    """Return what a connection whose filters have so many predicates counts for toward ``max_predicates``."""
    return max(0, predicates - FREE_PREDICATES)


def refuse_subscription(
    peer: Peer, id_: str, filter_: Filter, from_: From, limits: Limits, predicates: int, *, ends: bool
) -> Refusal | None:
    """Return why ``peer`` may not have this subscription, in place of one with the same id; None when it may.

    All connections together have ``predicates``. A subscription that only replays, and ``ends``, adds none: no live
    Event is compared with it.
    """
    if peer.grants is not None and not peer.grants.consume:
        return Refusal("unauthorized", "this token may not consume")
    if id_ not in peer.subscriptions and len(peer.subscriptions) >= limits.max_subscriptions:
        return _beyond(f"max_subscriptions: {limits.max_subscriptions} on one connection")
    if from_ is not None and from_ != "all" and len(from_) > limits.resume_positions:
        return _beyond(f"max_from_positions: {limits.resume_positions} resume positions")
    # What this one has to replay is as much as there are sessions; what all together have is not.
    others = sum(_held_bytes(known) for known in peer.subscriptions.values() if known.id != id_)
    if others + held_bytes(filter_, from_) > limits.max_subscription_bytes:
        return _beyond(f"max_subscription_bytes: {limits.max_subscription_bytes} bytes on one connection")
    if not ends:
        old = peer.subscriptions.get(id_)
        mine = (
            peer.predicates - (0 if old is None or old.group is None else old.filter.weight) + filter_.weight
        )
        added = counted(mine) - counted(peer.predicates)
        if added > 0 and predicates + added > limits.max_predicates:
            return _beyond(f"max_predicates: {limits.max_predicates} in all filters of all connections")
    return None


def _held_bytes(subscription: Subscription) -> int:
    """Return about how much memory ``subscription`` takes now, with the cursors of a replay of everything."""
    replay = subscription.replay
    cursors = 0 if replay is None else len(replay.behind) * CURSOR_BYTES
    return max(subscription.held_bytes, cursors)


def _beyond(detail: str) -> Refusal:
    return Refusal("limit-exceeded", detail)
