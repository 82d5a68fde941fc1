"""``[[upstream]]``: the relays this one is chained to, and the addresses of proxies in front of it.

Invariants: what comes out has a target, TLS wherever the token or the Events would cross a network (unless the
operator said otherwise by name), and at most one source of its token; the text of a token is in no message.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from ipaddress import ip_network
from urllib.parse import urlsplit

from aep_relay.config.errors import ConfigError, Wrong
from aep_relay.config.hosts import is_loopback
from aep_relay.config.tokens import check_text, read_file
from aep_relay.config.values import NAME, FilterText, required, secret, setting
from aep_relay.protocol.registry import CAPTURES

MODES = ("push", "pull", "both")
KIB, MIB = 1024, 1024 * 1024

_URL = (
    re.compile(r"(https?|wss?)://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:]+\])(:\d{1,5})?(/[!-\"$->@-~]*)?"),
    'must be a URL such as "https://hub.example.org/relay", without user, query and fragment',
)
_VARIABLE = (re.compile(r"[A-Za-z_][A-Za-z0-9_]*"), "must be the name of an environment variable")


@dataclass(frozen=True, slots=True)
class Upstream:
    """A relay that Events are pushed to or pulled from. Bytes, counts and seconds, as named."""

    name: str = required("what logs, metrics and listings call it", form=NAME)
    url: str | None = setting(None, "its base URL: http, https, ws or wss", form=_URL)
    unix: str | None = setting(None, "path of a unix socket to reach it by, instead", path=True)
    mode: str = setting("push", "push: Events go up; pull: they come down; both", choices=MODES)
    token: str | None = secret("bearer token for it")
    token_file: str | None = setting(None, "file that holds the token", path=True)
    token_env: str | None = setting(None, "environment variable that holds the token", form=_VARIABLE)
    filter: FilterText = setting(  # noqa: RUF009  # a field, as above
        FilterText("{}"), "which Events pass: attr-match, as a table"
    )
    capture: str | None = setting(None, "the most content that passes", choices=CAPTURES)
    ca_file: str | None = setting(
        None, "certificates of authorities to trust instead of the system's", path=True
    )
    certificate_file: str | None = setting(None, "client certificate, with its chain", path=True)
    key_file: str | None = setting(
        None, "key of the client certificate, unless that file holds it", path=True
    )
    allow_plain_http: bool = setting(
        False, "send token and Events over a network in clear text; the opt-out from TLS"
    )
    connect_timeout_seconds: float = setting(
        10.0, "to connect, TLS and hello included", minimum=0.1, maximum=600
    )
    answer_timeout_seconds: float = setting(
        30.0, "for an answer, or for sent bytes to be taken", minimum=0.1, maximum=600
    )
    retry_min_seconds: float = setting(
        0.5, "bound of the first pause before another attempt", minimum=0.01, maximum=3600
    )
    retry_max_seconds: float = setting(30.0, "bound of every later pause", minimum=0.01, maximum=86_400)
    stable_seconds: float = setting(
        30.0, "having held for so long, a link counts as good", minimum=0.0, maximum=86_400
    )
    buffer_bytes: int = setting(
        16 * MIB, "Events kept until the other relay has confirmed them", minimum=64 * KIB, maximum=1024**4
    )
    max_batch_events: int = setting(500, "Events in one POST to it", minimum=1, maximum=1_000_000)
    max_batch_bytes: int = setting(MIB, "body of one POST to it", minimum=KIB, maximum=1024 * MIB)

    @property
    def pushes(self) -> bool:
        """Whether Events go up."""
        return self.mode != "pull"

    @property
    def pulls(self) -> bool:
        """Whether Events come down."""
        return self.mode != "push"


def network(text: str) -> str:
    """Return an address or network in its normal spelling. Raises ``Wrong``."""
    if text == "unix":
        return text
    try:
        return str(ip_network(text))
    except ValueError:
        raise Wrong('each must be an address, a network such as "10.0.0.0/8", or "unix"') from None


class Chaining:
    """Takes the upstreams of a configuration in, one after the other."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self.upstreams: list[Upstream] = []
        self.secrets: list[str] = []
        self.warnings: list[str] = []
        self._env = env

    def keep(self, upstream: Upstream, where: str) -> None:
        """Take in one that stands at ``where``. Raises ``ConfigError``."""
        if upstream.name in {known.name for known in self.upstreams}:
            raise ConfigError(f"{where}.name", f"{upstream.name} is taken by another upstream")
        if (upstream.url is None) == (upstream.unix is None):
            raise ConfigError(f"{where}.url", "set either url or unix")
        if upstream.retry_min_seconds > upstream.retry_max_seconds:
            raise ConfigError(f"{where}.retry_min_seconds", "must be at most retry_max_seconds")
        _check_security(upstream, where)
        token = self._token(upstream, where)
        if token is not None:
            self.secrets.append(token)
        self.upstreams.append(replace(upstream, token=token))

    def _token(self, upstream: Upstream, where: str) -> str | None:
        given = [name for name in ("token", "token_file", "token_env") if getattr(upstream, name) is not None]
        if len(given) > 1:
            raise ConfigError(f"{where}.{given[1]}", "set only one of token, token_file and token_env")
        if upstream.token_file is not None:
            text, warnings = read_file(upstream.token_file, f"{where}.token_file")
            self.warnings += warnings
            return text
        token = upstream.token
        if upstream.token_env is not None:
            token = self._env.get(upstream.token_env, "")
            if not token:
                raise ConfigError(f"{where}.token_env", f"{upstream.token_env} is not set, or empty")
        if token is not None:
            check_text(token, f"{where}.{given[0]}")
        return token


def _check_security(upstream: Upstream, where: str) -> None:
    if upstream.key_file is not None and upstream.certificate_file is None:
        raise ConfigError(f"{where}.key_file", "is the key of certificate_file, which is not set")
    url = urlsplit(upstream.url or "")
    if url.scheme not in ("https", "wss"):
        for name in ("ca_file", "certificate_file"):
            if getattr(upstream, name) is not None:
                raise ConfigError(f"{where}.{name}", "is for TLS, which url does not ask for")
        if upstream.url is not None and not upstream.allow_plain_http and not is_loopback(url.hostname or ""):
            raise ConfigError(
                f"{where}.url",
                f"{url.hostname} is not loopback, and all would cross the network in clear text: use https, or set "
                "allow_plain_http = true to accept that",
            )
    for name in ("ca_file", "certificate_file", "key_file"):
        path = getattr(upstream, name)
        if path is not None and not os.access(path, os.R_OK):
            raise ConfigError(f"{where}.{name}", f"{path} cannot be read")
