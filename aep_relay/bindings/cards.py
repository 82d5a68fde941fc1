"""Signed identity cards: what ``hello.identity.card`` says of its bearer, and whether it holds (AEP-0003 §8.3).

The card is experimental in AEP 0.1, and checking it a policy of the relay's operator. A valid card is a compact JWS by
one of the operator's keys whose payload names the hello's ``agent`` and a ``valid_until`` in the future: RFC 3339, or
seconds since 1970. It is looked at once, at hello; what is relayed of an identity stays as it was declared.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from aep_relay.config import ConfigError
from aep_relay.protocol.errors import safe_text
from aep_relay.protocol.grammar import is_time
from aep_relay.protocol.jsontext import JsonError, loads

if TYPE_CHECKING:
    from collections.abc import Callable

    from aep_relay.bindings.jws import KeyRing
    from aep_relay.config import Cards

MAX_KEY_FILE_BYTES = 1024 * 1024
MAX_SHOWN_CHARACTERS = 200
MAX_SECONDS = 253_402_300_800
"""The year 10000: what is later is no time."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a card."""

    status: str
    """``valid``, ``invalid`` or ``absent``."""
    detail: str = ""
    """Why it is not valid."""
    operator: str | None = None
    valid_until: str | float | None = None
    """As the card says it."""

    @property
    def valid(self) -> bool:
        """Whether there is a card and it holds."""
        return self.status == "valid"

    def document(self) -> dict[str, object]:
        """Return it for listings, without what there is none of."""
        members = {"status": self.status, "operator": self.operator, "valid_until": self.valid_until}
        found: dict[str, object] = {name: value for name, value in members.items() if value is not None}
        return {**found, "detail": self.detail} if self.detail else found


ABSENT = Verdict("absent", "there is no card")


class Inspector:
    """Checks cards against the operator's keys."""

    def __init__(self, keys: KeyRing, *, required: bool, clock: Callable[[], float] = time.time) -> None:
        self._keys = keys
        self._clock = clock
        self.required = required
        """Whether an emitter needs a valid card."""

    def inspect(self, card: object, agent: str | None) -> Verdict:
        """Return what ``card``, any JSON value, is worth to ``agent``. Never raises."""
        if card is None:
            return ABSENT
        if not isinstance(card, str):
            return Verdict("invalid", "it is no compact JWS")
        payload = self._keys.payload(card)
        if isinstance(payload, str):
            return Verdict("invalid", payload)
        try:
            claims = loads(payload)
        except JsonError:
            return Verdict("invalid", "its payload is not JSON")
        if not isinstance(claims, dict):
            return Verdict("invalid", "its payload is no object")
        return self._judge(claims, agent)

    def _judge(self, claims: dict[str, object], agent: str | None) -> Verdict:
        operator, until = claims.get("operator"), claims.get("valid_until")
        end = _seconds(until)
        problem = ""
        if agent is None or claims.get("agent") != agent:
            problem = "it is of another agent"
        elif end is None:
            problem = "its valid_until is no time"
        elif end <= self._clock():
            problem = "it is not valid any more"
        return Verdict(
            "invalid" if problem else "valid",
            problem,
            safe_text(operator, MAX_SHOWN_CHARACTERS) if isinstance(operator, str) else None,
            until if end is not None and isinstance(until, str | float | int) else None,
        )


def _seconds(until: object) -> float | None:
    """Return the moment that ``until`` names in seconds since 1970, None if it names none."""
    if isinstance(until, str) and len(until) <= MAX_SHOWN_CHARACTERS and is_time(until):
        try:
            return datetime.fromisoformat(until.upper()).timestamp()
        except (ValueError, OverflowError):
            return None  # a leap second, or the year 0
    if isinstance(until, int | float) and not isinstance(until, bool) and 0 <= until < MAX_SECONDS:
        return float(until)
    return None


def inspector(cards: Cards) -> Inspector | None:
    """Return what checks cards as ``cards`` says, None if nothing does. Raises ``ConfigError``."""
    if cards.policy == "off" or cards.keys is None:
        return None
    # Who checks no card needs no cryptography in memory.
    from aep_relay.bindings.jws import UnusableKeys, read_keys

    path = Path(cards.keys)
    try:
        with path.open("rb") as file:
            text = file.read(MAX_KEY_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError("cards.keys", f"{path} cannot be read: {error.strerror}") from error
    if len(text) > MAX_KEY_FILE_BYTES:
        raise ConfigError("cards.keys", f"{path} holds more than {MAX_KEY_FILE_BYTES} bytes")
    try:
        keys = read_keys(text)
    except UnusableKeys as error:
        raise ConfigError("cards.keys", f"{path} {error}") from error
    return Inspector(keys, required=cards.policy == "require")
