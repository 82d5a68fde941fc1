"""Bursts: Events of one session that have come together, taken in as one for a fraction of what each would cost.

Most input is of this kind: an emitter sends its session in order, many Events at a time. Invariants: what a burst comes
to is what its Events would have come to one by one, all else in the hub included, but that what exceeds the bounds of
the buffers is evicted behind it. How long one may be is bounded by what it can cost, as a turn on the loop is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aep_relay.hub.fanout import REDACTED, REDACTION_FACTOR

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aep_relay.hub.fanout import FanOut
    from aep_relay.protocol.event import Event

MAX_EVENTS: Final = 64
MAX_BYTES: Final = 64 * 1024
MAX_COHORTS: Final = 64
"""With more, each Event may cost as much as a burst."""
MAX_WEIGHT: Final = 4096
"""Predicates that are evaluated for the Events of a burst, all together."""
FEW_PREDICATES: Final = MAX_WEIGHT // MAX_EVENTS
"""With more in the whole index, it takes a look at each Event to know how many it may need."""
MAX_PLACES: Final = 8192
"""Groups of cohorts that they are queued for, likewise: each takes some tenths of a microsecond."""


def cut(events: Sequence[Event], start: int, fanout: FanOut) -> list[Event]:
    """Return the burst that ``events`` begin with at ``start``; fewer than two where there is none.

    One session, one rising position after the other, and little enough of it all.
    """
    if fanout.solos or len(fanout.cohorts) > MAX_COHORTS:
        # What a replaying connection is sent depends on what is in the buffers at that moment.
        return []
    burst: list[Event] = []
    index = fanout.index
    session, last, left_bytes = events[start].session, (-1, -1), MAX_BYTES
    if fanout.redacts(REDACTED) and (
        len(index.groups) > FEW_PREDICATES
        or any(group.ceiling == REDACTED for group in index.groups.values())
    ):
        left_bytes //= REDACTION_FACTOR
    for event in events[start : start + MAX_EVENTS]:
        position = event.position
        left_bytes -= len(event.raw)
        if position is None or position <= last or event.session != session or left_bytes < 0:
            break
        last = position
        burst.append(event)
    if index.weight > FEW_PREDICATES or fanout.places * MAX_EVENTS > MAX_PLACES:
        left_weight, left_places = MAX_WEIGHT, MAX_PLACES
        for count, event in enumerate(burst):
            weight = index.cost(event)
            left_weight -= weight
            # A group is in every cohort at most, and weighs 1 at least.
            left_places -= min(fanout.places, weight * len(fanout.cohorts))
            if left_weight < 0 or left_places < 0:
                return burst[:count]
    return burst
