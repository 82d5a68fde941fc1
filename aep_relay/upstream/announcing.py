"""What the hellos of chained relays say of themselves and each other (AEP-0003 §4 rule 6, ``hub.feeders``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aep_relay.hub import feeders
from aep_relay.protocol.discovery import VERSIONS
from aep_relay.protocol.hello import AGENT

if TYPE_CHECKING:
    from aep_relay.hub.feeders import Announcement


def hello(instance: str, announcement: dict[str, object]) -> dict[str, object]:
    """Return the hello of a relay that announces itself to another (AEP-0003 §4 rule 6)."""
    return {
        "type": "hello",
        "versions": list(VERSIONS),
        "role": "consumer",
        "identity": {"agent": AGENT, "instance": instance},
        "capabilities": {"experimental": {feeders.NAME: announcement}},
    }


def announced(said: dict[str, object], link: str) -> Announcement | None:
    """Return what the hello ``said`` announces over ``link``, None where its sender knows nothing of it."""
    value = _member(said, "experimental").get(feeders.NAME)
    return feeders.parse({**value, "link": link}) if isinstance(value, dict) else None


def instance(said: dict[str, object]) -> object:
    """Return what tells one run of a relay from another (AEP-0003 §4 rule 3), None where nothing does."""
    identity = said.get("identity")
    return identity.get("instance") if isinstance(identity, dict) else None


def offers_others(said: dict[str, object]) -> bool:
    """Say whether a resume may ask for all sessions that it does not name."""
    extras = _member(said, "experimental").get(feeders.NAME)
    return isinstance(extras, dict) and extras.get("others") is True


def offers_all(said: dict[str, object]) -> bool:
    """Say whether ``from`` may be ``all`` (AEP-0003 §5)."""
    return _member(said, "replay").get("all") is True


def _member(said: dict[str, object], name: str) -> dict[str, object]:
    """Return an object among the capabilities of a hello, empty where there is none."""
    capabilities = said.get("capabilities")
    value = capabilities.get(name) if isinstance(capabilities, dict) else None
    return value if isinstance(value, dict) else {}
