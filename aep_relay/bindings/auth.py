"""Who is asking: the bearer token of a request (AEP-0003 §8.1)."""

from __future__ import annotations

import hmac
from hashlib import sha256
from typing import TYPE_CHECKING

from aep_relay.hub.policy import ANONYMOUS, FULL
from aep_relay.protocol.errors import Unauthorized

if TYPE_CHECKING:
    from aep_relay.config import Auth
    from aep_relay.hub.policy import Grants
    from aep_relay.transport.http import Request

_SCHEME = b"bearer "


class Authority:
    """Knows the token, by its digest, and what it grants."""

    def __init__(self, auth: Auth) -> None:
        self._digest = None if auth.token is None else sha256(auth.token.encode("ascii")).digest()
        self._query_token = auth.query_token

    @property
    def open(self) -> bool:
        """Whether the relay has no token: then anybody may emit and observe, and nobody may command."""
        return self._digest is None

    def grants(self, request: Request) -> Grants:
        """Return what the request's token grants. Raises ``Unauthorized``."""
        if self._digest is None:
            return ANONYMOUS
        token = self._token(request)
        if token is None:
            raise Unauthorized("a bearer token is required")
        # Digests have one length: the comparison takes as long whatever was presented.
        if not hmac.compare_digest(sha256(token).digest(), self._digest):
            raise Unauthorized("the bearer token is not valid")
        return FULL

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
