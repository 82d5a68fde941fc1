"""Who is asking: the bearer token of a request, what it grants, and what its holders use up (AEP-0003 §8.1).

Invariants: tokens are known by their SHA-256 hashes only. A hash is found in a table whose own hashing is keyed, at
random for each process, and is compared in constant time then: how long an answer takes tells nothing of any token.
The connections of a token are known to it, so that they can end with it.
"""

from __future__ import annotations

import hmac
import math
import time
from dataclasses import fields
from hashlib import sha256
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

import trio

from aep_relay.config import Token
from aep_relay.config.tables import GRANTS
from aep_relay.config.tokens import DEFAULT_NAME, hash_of
from aep_relay.hub.policy import ANONYMOUS, Grants, Patterns
from aep_relay.hub.rate import Rate
from aep_relay.protocol.errors import ProtocolError, Unauthorized
from aep_relay.protocol.registry import CAPTURE_RANK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from aep_relay.bindings.connection import Connection
    from aep_relay.config import Auth
    from aep_relay.transport.http import Request

    Ending = tuple[Connection, str]
    """A connection that has to end, and why."""

REMOVED = "token-removed"
CHANGED = "token-changed"
EXPIRED = "token-expired"
REQUIRED = "token-required"
"""Of a connection without a token, when the relay begins to want one."""

_SCHEME = b"bearer "
_NOBODY = bytes(32)
_PASSING = ("file", "expires", "events_per_second", "max_connections")
"""What of a token concerns no connection that is open."""
_reach = attrgetter(*[setting.name for setting in fields(Token) if setting.name not in _PASSING])


class TooManyRequests(ProtocolError):
    """What a token allows is used up; ``retry_after_seconds`` says until when, where it is known."""

    code = "limit-exceeded"
    http_status = 429

    def __init__(self, detail: str, retry_after_seconds: int | None = None) -> None:
        super().__init__(detail)
        self.retry_after_seconds = retry_after_seconds


class Entry(NamedTuple):
    """A token, with what takes a while to work out of it."""

    token: Token
    digest: bytes
    grants: Grants


def entries(auth: Auth, tokens: Iterable[Token]) -> list[Entry]:
    """Return all tokens of a configuration. Touches nothing of the relay: with thousands of tokens, for a worker."""
    found = [*tokens]
    if auth.token is not None:
        found.insert(0, Token(name=DEFAULT_NAME, grants=GRANTS, sha256=hash_of(auth.token)))
    return [Entry(token, bytes.fromhex(token.sha256 or ""), _grants(token)) for token in found]


class Holder:
    """All who present one token: what they may do, and what they use up together."""

    __slots__ = ("connections", "digest", "expires_at", "grants", "rate", "token")

    def __init__(self, entry: Entry | None) -> None:
        self.token = None if entry is None else entry.token
        """None for those who need none."""
        self.digest = b"" if entry is None else entry.digest
        self.grants = ANONYMOUS if entry is None else entry.grants
        self.expires_at = _timestamp(self.token)
        self.connections: set[Connection] = set()
        """Streams and sockets that were opened with it."""
        self.rate: Rate | None = None
        self._set_rate()

    @property
    def named(self) -> dict[str, str]:
        """What a log says of it."""
        return {} if self.token is None else {"token_name": self.token.name}

    def check_rate(self) -> None:
        """Raise ``TooManyRequests`` while the token's ``events_per_second`` is used up."""
        rate = self.rate
        if rate is not None:
            wait_seconds = rate.wait_seconds(trio.current_time())
            if wait_seconds:
                detail = f"events_per_second: this token may emit {rate.per_second:g} Events a second"
                raise TooManyRequests(detail, math.ceil(wait_seconds))

    def spend(self, events: int) -> None:
        """Count ``events`` that come in together. Raises ``TooManyRequests``; then they may not come in."""
        if self.rate is not None:
            self.check_rate()
            self.rate.spend(events, trio.current_time())

    def check_room(self) -> None:
        """Raise ``TooManyRequests`` when the token holds all the connections it may."""
        most = self.grants.max_connections
        if most is not None and len(self.connections) >= most:
            raise TooManyRequests(f"max_connections: this token may hold {most} streams and sockets at once")

    def reaches_as_far_as(self, token: Token) -> bool:
        """Whether ``token`` is this one, and differs in nothing that a connection is bound to for good."""
        return self.token is not None and _reach(self.token) == _reach(token)

    def take_over(self, entry: Entry) -> None:
        """Go on with the token of ``entry``, which reaches as far."""
        self.token = entry.token
        self.grants = entry.grants
        self.expires_at = _timestamp(entry.token)
        self._set_rate()
        for connection in self.connections:
            connection.peer.grants = self.grants

    def _set_rate(self) -> None:
        per_second = self.grants.events_per_second
        if per_second is None:
            self.rate = None
        elif self.rate is None:
            self.rate = Rate(per_second, trio.current_time())
        else:
            self.rate.change(per_second, trio.current_time())


def _timestamp(token: Token | None) -> float:
    return math.inf if token is None or token.expires is None else token.expires.timestamp()


def _grants(token: Token) -> Grants:
    return Grants(
        authenticated=True,
        emit="emit" in token.grants,
        consume="consume" in token.grants,
        control="control" in token.grants,
        operate="operate" in token.grants,
        name=token.name,
        agents=_patterns(token.agents),
        sessions=_patterns(token.sessions),
        commands=_patterns(token.commands),
        ceiling=None if token.capture is None else CAPTURE_RANK[token.capture],
        events_per_second=token.events_per_second,
        max_connections=token.max_connections,
    )


def _patterns(patterns: tuple[str, ...] | None) -> Patterns | None:
    return None if patterns is None else Patterns(patterns)


class Authority:
    """Knows all tokens and who holds them."""

    def __init__(
        self, auth: Auth, tokens: Iterable[Token] = (), *, clock: Callable[[], float] = time.time
    ) -> None:
        self._clock = clock
        self._query_token = auth.query_token
        self._anybody = Holder(None)
        self._holders: dict[bytes, Holder] = {}
        self.replace(auth, entries(auth, tokens))

    @property
    def open(self) -> bool:
        """Whether the relay has no token: then anybody may emit and observe, and nobody may command."""
        return not self._holders

    def holder(self, request: Request) -> Holder:
        """Return who presents the request's token. Raises ``Unauthorized``."""
        if not self._holders:
            return self._anybody
        token = self._token(request)
        if token is None:
            raise Unauthorized("a bearer token is required")
        digest = sha256(token).digest()
        holder = self._holders.get(digest)
        known = hmac.compare_digest(digest, _NOBODY if holder is None else holder.digest)
        if holder is None or not known:
            raise Unauthorized("the bearer token is not valid")
        if holder.expires_at != math.inf and self._clock() >= holder.expires_at:
            raise Unauthorized("the bearer token has expired")
        return holder

    def grants(self, request: Request) -> Grants:
        """Return what the request's token grants. Raises ``Unauthorized``."""
        return self.holder(request).grants

    def replace(self, auth: Auth, found: Iterable[Entry]) -> list[Ending]:
        """Know the ``entries`` of a configuration from now on; return the connections that have to end.

        A connection goes on if its token still reaches as far: another expiry, rate or number of connections holds at
        once, and concerns it no further.
        """
        known, self._holders = self._holders, {}
        self._query_token = auth.query_token
        endings: list[Ending] = []
        for entry in found:
            holder = known.get(entry.digest)
            if holder is None or not holder.reaches_as_far_as(entry.token):
                holder = Holder(entry)
            elif holder.token != entry.token:
                holder.take_over(entry)
            self._holders[entry.digest] = holder
        names = {holder.grants.name for holder in self._holders.values()}
        for digest, holder in known.items():
            if self._holders.get(digest) is not holder:
                changed = digest in self._holders or holder.grants.name in names
                reason = CHANGED if changed else REMOVED
                endings += [(connection, reason) for connection in holder.connections]
        if self._holders:
            endings += [(connection, REQUIRED) for connection in self._anybody.connections]
        return endings

    def expired(self) -> list[Ending]:
        """Return the connections whose token has expired."""
        now = self._clock()
        return [
            (connection, EXPIRED)
            for holder in self._holders.values()
            if now >= holder.expires_at
            for connection in holder.connections
        ]

    def _token(self, request: Request) -> bytes | None:
        headers = request.get_all(b"authorization")
        if len(headers) > 1:
            raise Unauthorized("more than one Authorization header")
        if headers:
            value = headers[0]
            if value[: len(_SCHEME)].lower() != _SCHEME:
                raise Unauthorized("the Authorization header is not of the form: Bearer <token>")
            return value[len(_SCHEME) :].strip()
        given = request.query.get("access_token")
        if given is None:
            return None
        if not self._query_token:
            raise Unauthorized("access_token is switched off here; send an Authorization header")
        if len(given) > 1:
            raise Unauthorized("more than one access_token")
        return given[0].encode("utf-8")
