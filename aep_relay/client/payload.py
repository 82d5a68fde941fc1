"""Payloads of Events from outside, for showing: whatever they hold, reading them raises nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from aep_relay.protocol.event import Event


def payload(event: Event) -> dict[str, Any]:
    """Return the Event's ``data``; empty if it has none, or one with a number that nothing can hold."""
    members = msgspec.json.decode(event.raw, type=dict[str, msgspec.Raw])
    try:
        data = msgspec.json.decode(members["data"]) if "data" in members else {}
    except (ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}
