"""The discovery document."""

from __future__ import annotations

import json

from aep_relay.protocol.discovery import capabilities, document


def test_the_document() -> None:
    assert json.loads(document(500)) == {
        "aep": ["0.1"],
        "role": "collector",
        "endpoints": {"events": "/events", "stream": "/stream", "socket": "/socket"},
        "capabilities": {
            "filters": ["attr-match"],
            "replay": {"buffer": 500, "all": True},
            "capture": ["none", "metadata", "redacted", "full"],
            "control": {"accepts": []},
            "roster": {},
            "experimental": {},
        },
    }


def test_each_call_makes_capabilities_of_its_own() -> None:
    capabilities(1)["experimental"] = {"x": 1}
    assert capabilities(1)["experimental"] == {}
