"""Which subscriptions a connection may have: none beyond its token, and none beyond a limit (AEP-0003 §6.5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aep_relay.hub.replay import CURSOR_BYTES, held_bytes
from aep_relay.protocol.errors import Refusal

if TYPE_CHECKING:
    from aep_relay.hub.limits import Limits
    from aep_relay.hub.peer import Peer
    from aep_relay.hub.replay import From
    from aep_relay.hub.subscriptions import Subscription
    from aep_relay.protocol.filters import Filter


def refuse_subscription(peer: Peer, id_: str, filter_: Filter, from_: From, limits: Limits) -> Refusal | None:
    """Return why ``peer`` may not have this subscription, in place of one with the same id; None when it may."""
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
    return None


def _held_bytes(subscription: Subscription) -> int:
    """Return about how much memory ``subscription`` takes now, with the cursors of a replay of everything."""
    replay = subscription.replay
    cursors = 0 if replay is None else len(replay.behind) * CURSOR_BYTES
    return max(subscription.held_bytes, cursors)


def _beyond(detail: str) -> Refusal:
    return Refusal("limit-exceeded", detail)
