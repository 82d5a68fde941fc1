"""Which relay, and with which token: the same rules for every command.

``--relay`` or ``AEP_RELAY`` names the relay: ``http``, ``https``, ``ws`` or ``wss`` with an optional base path, or
``unix:`` and a path. The token comes from ``--token-file`` or, without it, from ``AEP_TOKEN``. An empty variable
counts as not set. A token never stands in a URL or in a message (AEP-0003 §8.1).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from urllib.parse import SplitResult, urlencode, urlsplit

from aep_relay.client.errors import Misused
from aep_relay.config import ConfigError
from aep_relay.config.hosts import is_loopback
from aep_relay.config.tokens import check_text, read_file

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_RELAY: Final = "http://127.0.0.1:8787"
ENDPOINTS: Final = ("/socket", "/stream", "/events")

_TLS = {"http": False, "ws": False, "https": True, "wss": True}
_FORMS = "http://127.0.0.1:8787, https://relay.example.org/base or unix:/run/aep-relay.sock"


@dataclass(frozen=True, slots=True)
class Target:
    """One relay as a client reaches it."""

    host: str | None
    """Name or address, without brackets; None over a unix socket."""
    port: int = 0
    tls: bool = False
    unix: str | None = None
    base: str = ""
    """Path in front of every endpoint, without a slash at its end."""
    token: str | None = field(default=None, repr=False)

    @property
    def authority(self) -> str:
        """The value of the Host field."""
        if self.host is None:
            return "localhost"
        name = f"[{self.host}]" if ":" in self.host else self.host
        return name if self.port == (443 if self.tls else 80) else f"{name}:{self.port}"

    @property
    def url(self) -> str:
        """How the relay is called in messages."""
        if self.unix is not None:
            return f"unix:{self.unix}"
        return f"{'https' if self.tls else 'http'}://{self.authority}{self.base}"

    @property
    def exposed(self) -> bool:
        """Whether the token, if there is one, goes over a network in clear text."""
        return (
            self.host is not None and not self.tls and self.token is not None and not is_loopback(self.host)
        )

    def resource(self, path: str, query: Mapping[str, str] | None = None) -> str:
        """Return the request target of ``path``."""
        return self.base + path + (f"?{urlencode(query)}" if query else "")

    def authorization(self) -> list[tuple[str, str]]:
        """Return the headers that present the token."""
        return [] if self.token is None else [("Authorization", f"Bearer {self.token}")]


def parse(url: str, token: str | None = None) -> Target:
    """Return the relay that ``url`` names. Raises ``Misused``."""
    if url.startswith("unix:"):
        path = url.removeprefix("unix:")
        if path.startswith("//"):
            path = path[2:]
        if not path.startswith("/"):
            raise Misused(f"{url}: a unix socket needs an absolute path", f"write it as {_FORMS}")
        return Target(None, unix=path, token=token)
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise Misused(f"{url}: {error}", f"write it as {_FORMS}") from None
    _check(url, parts)
    tls = _TLS[parts.scheme]
    base = parts.path.rstrip("/")
    for endpoint in ENDPOINTS:
        base = base.removesuffix(endpoint)
    return Target(parts.hostname, (443 if tls else 80) if port is None else port, tls, base=base, token=token)


def _check(url: str, parts: SplitResult) -> None:
    if parts.scheme not in _TLS or not parts.hostname:
        raise Misused(f"{url} is no relay URL", f"write it as {_FORMS}")
    if parts.username is not None or parts.password is not None or "access_token" in parts.query:
        raise Misused("a token does not belong into the relay's URL", "use --token-file or AEP_TOKEN")
    if parts.query or parts.fragment:
        raise Misused(f"{url}: a relay URL has no query and no fragment", f"write it as {_FORMS}")
    if not url.isascii() or not url.isprintable() or " " in url:
        raise Misused(f"{url}: a relay URL is printable ASCII", "spell other characters as %XX")


def resolve(relay: str | None, token_file: str | None, env: Mapping[str, str]) -> tuple[Target, list[str]]:
    """Return the relay to talk to, by flags and environment, and warnings about how. Raises ``Misused``."""
    token, warnings = _token(token_file, env)
    target = parse(relay or env.get("AEP_RELAY") or DEFAULT_RELAY, token)
    if target.exposed:
        warnings.append(f"the token goes to {target.url} in clear text; use https://")
    return target, warnings


def _token(file: str | None, env: Mapping[str, str]) -> tuple[str | None, list[str]]:
    try:
        if file is not None:
            return read_file(file, "--token-file")
        token = env.get("AEP_TOKEN") or None
        if token is not None:
            check_text(token, "AEP_TOKEN")
        return token, []
    except ConfigError as error:
        raise Misused(str(error)) from None
