"""What was delivered: the positions a ``closing`` frame reports (AEP-0003 §3.5.4, §8.4).

Consumers with the same filter receive the same live Events, so the highest delivered positions are kept once for each
group and session, not once for each consumer. A *track* is what one group delivered of one session: pairs of arrival
stamp and position, stamps rising and positions falling, so that the first pair younger than a consumer's subscription
holds the highest position that this consumer was sent. In order, a track is a single pair; only backfills make it
longer, and it is cut at ``MAX_TRACK_PAIRS`` on the safe side (a lower position costs duplicates, never losses).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aep_relay.protocol.position import MAX_POSITION

if TYPE_CHECKING:
    from aep_relay.protocol.position import Position

    Track = tuple[tuple[int, Position], ...]

MAX_TRACK_PAIRS = 16


def extend(track: Track | None, stamp: int, position: Position) -> Track:
    """Return ``track`` with ``position``, delivered at ``stamp``, added."""
    if track is None or position >= track[0][1]:
        return ((stamp, position),)
    kept = [pair for pair in track if pair[1] > position]
    if len(kept) >= MAX_TRACK_PAIRS:
        del kept[1]
    kept.append((stamp, position))
    return tuple(kept)


def highest_since(track: Track | None, stamp: int) -> Position | None:
    """Return the highest position that was delivered after ``stamp``, None when there is none."""
    if track is None:
        return None
    for delivered_at, position in track:
        if delivered_at > stamp:
            return position
    return None


def higher(one: Position | None, other: Position | None) -> Position | None:
    """Return the higher of two positions, either of which may be absent."""
    if one is None or other is None:
        return one or other
    return max(one, other)


def after(position: Position) -> Position:
    """Return the lowest pair above ``position``."""
    return (position[0], position[1] + 1)


def before(position: Position) -> Position | None:
    """Return the highest position below ``position``, None when there is none."""
    epoch, seq = position
    if seq > 0:
        return (epoch, seq - 1)
    return (epoch - 1, MAX_POSITION) if epoch > 0 else None
