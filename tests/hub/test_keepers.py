"""What archives are told of: every Event but a redelivery of one that is held."""

from __future__ import annotations

from aep_relay.protocol.event import Event
from tests.hub.build import event, ingest, relay


def test_an_event_is_kept_once_as_long_as_it_is_held() -> None:
    hub = relay(buffer_events=2)
    kept: list[Event] = []
    hub.keepers.append(kept.append)
    ingest(hub, *(event(f"e{seq}", seq) for seq in range(10, 14)), event("e13", 13))
    assert [one.id for one in kept] == ["e10", "e11", "e12", "e13"]


def test_a_backfill_that_is_not_admitted_is_kept() -> None:
    hub = relay(buffer_events=2)
    kept: list[Event] = []
    hub.keepers.append(kept.append)
    ingest(hub, *(event(f"e{seq}", seq) for seq in range(10, 14)), event("late", 5))
    assert kept[-1].id == "late"


def test_events_without_a_session_and_commands_of_chained_relays_are_kept() -> None:
    hub = relay()
    kept: list[Event] = []
    hub.keepers.append(kept.append)
    ingest(hub, event("up", session=None, type="agent.presence"))
    hub.take_over(event("cancel", type="control.cancel"), None)
    assert [one.id for one in kept] == ["up", "cancel"]
