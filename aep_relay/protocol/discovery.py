"""The discovery document, and the capabilities that it shares with our hello (AEP-0003 §3.4, §4)."""

from __future__ import annotations

from typing import Final

import msgspec

from aep_relay.protocol.registry import CAPTURES

VERSIONS: Final = ("0.1",)
"""The protocol versions spoken here, newest first."""


def capabilities(buffer_events: int) -> dict[str, object]:
    """Return what this relay offers. ``buffer_events`` is how many Events it keeps for replay, per session."""
    return {
        "filters": ["attr-match"],
        "replay": {"buffer": buffer_events, "all": True},
        "capture": list(CAPTURES),
        # Commands are routed to those who declared to accept them; the relay itself obeys none.
        "control": {"accepts": []},
        "roster": {},
        "experimental": {},
    }


def document(buffer_events: int) -> bytes:
    """Return the discovery document as JSON."""
    return msgspec.json.encode(
        {
            "aep": VERSIONS,
            "role": "collector",
            "endpoints": {"events": "/events", "stream": "/stream", "socket": "/socket"},
            "capabilities": capabilities(buffer_events),
        }
    )
