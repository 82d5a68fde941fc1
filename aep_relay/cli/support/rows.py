"""One Event in one line, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aep_relay.cli.support.output import SEVERITY_STYLES, Cell
from aep_relay.client.payload import payload
from aep_relay.client.times import moment
from aep_relay.protocol.registry import SEVERITIES

if TYPE_CHECKING:
    from aep_relay.protocol.event import Event

MAX_SUMMARY_CHARS = 200
MAX_PARTS = 4

_SAID = (
    ("prompt",),
    ("message",),
    ("error", "message"),
    ("error", "type"),
    ("reason",),
    ("status",),
    ("state",),
    ("resolution",),
    ("answer", "option"),
    ("answer", "text"),
    ("detail",),
    ("phase",),
    ("task", "title"),
    ("name",),
    ("trigger",),
)
"""Payload members that say what an Event is about, what says most first."""


_ABOUT_AN_EVENT = frozenset(
    {
        "attention.answered",
        "attention.resolved",
        "attention.routed",
        "attention.timeout",
        "control.attention.respond",
    }
)
"""Types whose subject is an Event's id, which says little to people."""


def summary(event: Event) -> str:
    """Return a few words on what the Event says."""
    data = payload(event)
    subject = None if event.type in _ABOUT_AN_EVENT else event.subject
    parts = [
        part
        for part in (_at(data, ("tool", "name")) or subject, *(_at(data, path) for path in _SAID))
        if part
    ]
    for member, unit in (("percent", " %"), ("duration_ms", " ms")):
        value = data.get(member)
        if isinstance(value, int | float) and not isinstance(value, bool):
            parts.append(f"{value:g}{unit}")
    text = " · ".join(dict.fromkeys(parts[:MAX_PARTS]))
    return text if len(text) <= MAX_SUMMARY_CHARS else text[: MAX_SUMMARY_CHARS - 1] + "…"


def _at(data: dict[str, Any], path: tuple[str, ...]) -> str:
    value: Any = data
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value if isinstance(value, str) else ""


def clock(event: Event) -> str:
    """Return the Event's time of day here."""
    when = moment(event.time)
    return event.time if when is None else when.astimezone().strftime("%H:%M:%S")


def position(event: Event) -> str:
    """Return where in its session the Event stands; empty if nowhere."""
    if event.position is None:
        return ""
    epoch, seq = event.position
    return str(seq) if epoch == 0 else f"{epoch}:{seq}"


def row(event: Event) -> list[Cell]:
    """Return the cells of an Event's line."""
    severity = SEVERITIES[event.severity]
    style = SEVERITY_STYLES[severity]
    return [
        Cell(clock(event), "dim"),
        Cell(f"{severity:<8}", style),
        Cell(f"{event.agent}/{event.session}" if event.session is not None else event.agent, "magenta"),
        Cell(f"#{position(event)}" if event.position is not None else "-", "dim"),
        Cell(event.type, "bold" if event.type.startswith("attention.") else ""),
        Cell(summary(event), style),
    ]
