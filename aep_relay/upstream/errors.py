"""Why a link does not hold."""

from __future__ import annotations

from typing import Final

from aep_relay.protocol.errors import safe_text

UNREACHABLE: Final = "unreachable"
"""Nobody answers, or the connection broke."""
REFUSED: Final = "refused"
"""The upstream says no, to all that this link could send."""
LOOP: Final = "loop"
"""The link would close a circle."""
ENDED: Final = "ended"
"""The upstream ended the connection on purpose."""


class Down(Exception):
    """The link is down, for now; ``reason`` is one of this module's, ``detail`` is printable and bounded."""

    def __init__(self, reason: str, detail: str, *, wait_seconds: float = 0.0) -> None:
        self.reason = reason
        self.detail = safe_text(detail)
        self.wait_seconds = wait_seconds
        """How long the upstream asked to be left alone."""
        super().__init__(f"{reason}: {self.detail}")


def first(error: BaseException) -> Down:
    """Return the first ``Down`` in a group of nothing else."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if not isinstance(error, Down):
        raise TypeError("not a group of Down")
    return error
