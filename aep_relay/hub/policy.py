"""What a connection may do: the grants of the token it presented (AEP-0003 §8.2).

Authorization is the deployment's policy. Observation and emission are open on a relay without a token; commands need
an authenticated connection always, localhost included (AEP-0004).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Grants:
    """What a connection may do."""

    authenticated: bool
    """Whether a token was presented and held good."""
    emit: bool = True
    consume: bool = True
    control: bool = False
    operate: bool = False
    name: str = ""
    """The token's name, for logs and listings."""

    def may_command(self, type_: str, session: str) -> bool:
        """Say whether a command of ``type_`` may be sent to ``session``."""
        return self.authenticated and self.control


ANONYMOUS = Grants(authenticated=False)
FULL = Grants(authenticated=True, control=True, operate=True, name="default")
