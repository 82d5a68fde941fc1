"""What was sent up a link and comes down the same one: an Event without position has nothing else to know it by.

Invariant: bounded; what is forgotten is taken for somebody else's, and that is a duplicate, never a loss.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from aep_relay.protocol.event import Event

MAX_ECHOES: Final = 4096


class Echoes:
    """Events that are expected to come back."""

    def __init__(self) -> None:
        self._expected: OrderedDict[tuple[str, str], int] = OrderedDict()

    def expect(self, event: Event) -> None:
        """Note that ``event`` went up."""
        count = self._expected.pop(event.key, 0)
        self._expected[event.key] = count + 1
        if len(self._expected) > MAX_ECHOES:
            self._expected.popitem(last=False)

    def is_one(self, event: Event) -> bool:
        """Say whether ``event`` is one that went up, and expect it no more."""
        count = self._expected.pop(event.key, 0)
        if count > 1:
            self._expected[event.key] = count - 1
        return count > 0
