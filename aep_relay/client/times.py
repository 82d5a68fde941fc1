"""RFC 3339 texts and moments. A time is for display, and never decides on an order (AEP-0001 §5)."""

from __future__ import annotations

from datetime import UTC, datetime


def moment(text: str) -> datetime | None:
    """Return the moment that ``text`` names, None if it can't be told, as in a leap second."""
    try:
        found = datetime.fromisoformat(text.upper())
    except ValueError:
        return None
    return found if found.tzinfo is not None else None


def written(when: datetime) -> str:
    """Return ``when`` in UTC, to the millisecond."""
    return when.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def now() -> str:
    """Return the present moment as an Event's ``time``."""
    return written(datetime.now(UTC))
