"""Commands: routed to the one live claimant of their session, or refused to their sender (AEP-0004).

A command reaches one target, byte for byte, or its sender gets one refusal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aep_relay.protocol.errors import Refusal

if TYPE_CHECKING:
    from aep_relay.hub.claims import Claims
    from aep_relay.hub.peer import Peer
    from aep_relay.protocol.event import Event


def target_of(event: Event, sender: Peer | None, claims: Claims) -> Peer | Refusal:
    """Return the connection ``event``, a command, goes to, or why it goes nowhere."""
    session = event.session
    if session is None:
        return Refusal("no-route", "the command names no session")
    grants = None if sender is None else sender.grants
    if grants is None or not grants.authenticated:
        return Refusal("unauthorized", "commands need an authenticated WebSocket connection")
    if not grants.may_command(event):
        return Refusal("unauthorized", "this token may not send this command to this session")
    claimants = claims.of(session)
    if not claimants:
        return Refusal("no-route", "no live connection claims this session")
    if len(claimants) > 1:
        return Refusal("ambiguous", f"{len(claimants)} live connections claim this session")
    target = claimants[0]
    if target.accepts is None or event.type not in target.accepts:
        return Refusal("unsupported", "the claimant of this session does not accept this type of command")
    return target
