"""Every setting, its default and why it is there: a dataclass for each table of the file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from aep_relay.config.hosts import host_name, is_loopback
from aep_relay.config.upstreams import Upstream, network
from aep_relay.config.values import (
    NAME,
    OWNER,
    SHA256,
    URL,
    bind,
    host,
    name,
    one_of,
    origin,
    pattern,
    required,
    secret,
    secrets,
    setting,
)
from aep_relay.hub.limits import GIB, MIB, Limits
from aep_relay.protocol.adapter import VENDOR_CATEGORY
from aep_relay.protocol.registry import CAPTURES, CATEGORIES

GRANTS = ("emit", "consume", "control", "operate")
"""What a token can grant."""

_CEILINGS = tuple(
    f"{category}={level}" for category in (*sorted(CATEGORIES), VENDOR_CATEGORY) for level in CAPTURES
)
_LOOPBACK_ORIGIN = re.compile(r"https?://(localhost|127(\.\d{1,3}){3}|\[::1\])(:\d{1,5})?")


@dataclass(frozen=True, slots=True)
class Listen:
    """Where Events come in and go out; ``unix_mode`` holds permission bits."""

    host: str | None = setting("127.0.0.1", 'address or name of the data port; "" for no TCP at all')
    port: int = setting(8787, "TCP port; 0 lets the system choose", minimum=0, maximum=65535)
    unix: str | None = setting(None, "path of a unix socket to listen on as well", path=True)
    unix_mode: int = setting(0o600, "who may connect to the unix socket", minimum=0, maximum=0o777)
    unix_owner: str | None = setting(None, "user and group it belongs to", form=OWNER)
    also: tuple[str, ...] = setting((), "further places to listen", each=bind)
    trusted_proxies: tuple[str, ...] = setting(
        (), 'addresses and networks of proxies whose word on who asks is taken, "unix" too', each=network
    )


@dataclass(frozen=True, slots=True)
class Auth:
    """Who may connect. ``token`` is never empty: None is the only way to say that there is none."""

    token: str | None = secret("bearer token that grants everything; [[tokens]] says more")
    token_file: str | None = setting(None, "file that holds the token, so that this one need not", path=True)
    query_token: bool = setting(True, "also take the token as ?access_token=, as browsers must send it")
    behind_tls_proxy: bool = setting(False, "a proxy in front terminates TLS; needed off loopback")
    allow_plain_http: bool = setting(False, "serve a network in clear text; the opt-out from TLS")


@dataclass(frozen=True, slots=True)
class Token:
    """One of several tokens: who holds it, until when, and what it grants. An absent pattern narrows nothing."""

    name: str = required("what logs and listings call it", form=NAME)
    grants: tuple[str, ...] = required(
        "any of emit, consume, control and operate", each=one_of(*GRANTS), least=1
    )
    sha256: str | None = secret("SHA-256 hash of the token, in hexadecimal", form=SHA256)
    file: str | None = setting(None, "file that holds the token itself, instead of its hash", path=True)
    expires: datetime | None = setting(None, "when it ends")  # noqa: RUF009  # a field, as above
    agents: tuple[str, ...] | None = setting(
        None, "whose Events it may emit and consume", each=pattern, least=1
    )
    sessions: tuple[str, ...] | None = setting(
        None, "of which sessions, and which to command", each=pattern, least=1
    )
    commands: tuple[str, ...] | None = setting(None, "types of command it may send", each=pattern, least=1)
    capture: str | None = setting(None, "the most content its subscriptions get", choices=CAPTURES)
    events_per_second: float | None = setting(
        None, "Events it may emit, all its connections together", minimum=0.001, maximum=1e9
    )
    max_connections: int | None = setting(
        None, "streams and sockets it may hold at once", minimum=1, maximum=1_000_000
    )


@dataclass(frozen=True, slots=True)
class Cards:
    """What becomes of the signed identity card of a hello (AEP-0003 §8.3)."""

    policy: str = setting(
        "off",
        "off: unchecked; check: shown; require: emitters need a valid one",
        choices=("off", "check", "require"),
    )
    keys: str | None = setting(None, "JWKS file with the operator's public keys", path=True)


@dataclass(frozen=True, slots=True)
class Capture:
    """What becomes of content: at the way in by the stdio dialect, and at a ``redacted`` ceiling (AEP-0003 §9)."""

    ceiling: str = setting("metadata", "the most content taken in by the stdio dialect", choices=CAPTURES)
    categories: tuple[str, ...] = setting(
        ("attention=redacted",),
        'other ceilings for single categories, "x" for vendor types',
        each=one_of(*_CEILINGS),
    )
    redact: bool = setting(False, "run the redaction pipeline over what a redacted ceiling lets through")
    pii: bool = setting(True, "have it hide e-mail addresses and phone numbers as well")
    hide_names: tuple[str, ...] = setting(
        (), "variables and keys whose values are secret, here and in Events", each=name
    )
    hide_values: tuple[str, ...] = secrets("secrets to hide wherever they stand", each=name)


@dataclass(frozen=True, slots=True)
class Archive:
    """Where every relayed Event is written: ``{root}/{agent}/{session}.jsonl`` (AEP-0003 §3.1)."""

    root: str | None = setting(None, "folder of the archive; nothing is written without one", path=True)
    max_open_files: int = setting(256, "files held open at once", minimum=1, maximum=100_000)
    max_file_bytes: int = setting(
        256 * MIB, "a file that has grown to this is set aside; 0: never", minimum=0, maximum=1024 * GIB
    )
    max_pending_bytes: int = setting(
        64 * MIB,
        "waiting for the disk: beyond, debug and info Events are lost first",
        minimum=MIB,
        maximum=64 * GIB,
    )


@dataclass(frozen=True, slots=True)
class Tail:
    """JSONL files whose lines are taken in as they are written (AEP-0003 §3.1)."""

    patterns: tuple[str, ...] = required(
        "paths to follow; *, ? and [] match names, ** folders", each=name, least=1, path=True
    )
    state: str | None = setting(None, "file that remembers how far each was read", path=True)
    agent: str | None = setting(
        None, "who emits the lines of the stdio dialect; absent: whom the source names"
    )


@dataclass(frozen=True, slots=True)
class Cors:
    """Which web pages may use the relay."""

    allowed_origins: tuple[str, ...] = setting(
        (), 'origins of web pages, or "*"; empty: any if a token is set, else those of this host', each=origin
    )
    allowed_hosts: tuple[str, ...] = setting(
        (), 'names by which a relay without a token may be reached besides loopback\'s, or "*"', each=host
    )


@dataclass(frozen=True, slots=True)
class Log:
    """What is said on standard error."""

    level: str = setting("info", "least level", choices=("debug", "info", "warning", "error"))
    format: str = setting(
        "auto", "auto: console on a terminal, else JSON lines", choices=("auto", "console", "json")
    )


@dataclass(frozen=True, slots=True)
class Operator:
    """Where dashboard, metrics and health pages are served, apart from the data port."""

    enabled: bool = setting(True, "serve them at all")
    host: str | None = setting("127.0.0.1", 'address or name; "" for no TCP')
    port: int = setting(8788, "TCP port; 0 lets the system choose", minimum=0, maximum=65535)
    unix: str | None = setting(None, "path of a unix socket to serve on as well", path=True)
    relay_url: str | None = setting(
        None, "the data port's URL for the dashboard, if a proxy is between", form=URL
    )
    max_loop_latency_seconds: float = setting(0.5, "later than this: not ready", minimum=0.01, maximum=60)


@dataclass(frozen=True, slots=True)
class Config:
    """A whole, checked configuration. ``warnings`` are worth a look but no reason not to start."""

    listen: Listen = field(default_factory=Listen)
    auth: Auth = field(default_factory=Auth)
    tokens: tuple[Token, ...] = ()
    cards: Cards = field(default_factory=Cards)
    capture: Capture = field(default_factory=Capture)
    archive: Archive = field(default_factory=Archive)
    tail: tuple[Tail, ...] = ()
    cors: Cors = field(default_factory=Cors)
    limits: Limits = field(default_factory=Limits)
    log: Log = field(default_factory=Log)
    operator: Operator = field(default_factory=Operator)
    upstreams: tuple[Upstream, ...] = ()
    warnings: tuple[str, ...] = ()
    inherited: tuple[str, ...] = field(default=(), compare=False)
    """Addresses of the TCP sockets that were passed on start; if there are any, they are listened on instead."""
    secrets: tuple[str, ...] = field(default=(), repr=False, compare=False)
    """Tokens and listed secrets in plain text, as far as they are known: what no log may hold."""

    @property
    def has_tokens(self) -> bool:
        """Whether anybody needs a token."""
        return self.auth.token is not None or bool(self.tokens)

    def allows_origin(self, origin: str) -> bool:
        """Whether a web page of ``origin`` (the header's value) may use the relay.

        With a token any page may by default, since it has to know the token. Without one, a page from
        elsewhere could read the Events of the host its visitor sits at, so only pages of that host may.
        """
        allowed = self.cors.allowed_origins
        if allowed:
            return "*" in allowed or origin.lower() in allowed
        return self.has_tokens or _LOOPBACK_ORIGIN.fullmatch(origin) is not None

    def allows_host(self, host: str) -> bool:
        """Whether a relay without a token may be asked for under ``host`` (the header's value, a port included).

        A page whose name was made to lead here (DNS rebinding) shares its origin with this relay, and only the
        name tells.
        """
        name = host_name(host)
        if name is None:
            return False
        allowed = self.cors.allowed_hosts
        return is_loopback(name) or name.endswith(".localhost") or name in allowed or "*" in allowed


TABLES: Mapping[str, type] = {
    "listen": Listen,
    "auth": Auth,
    "cards": Cards,
    "capture": Capture,
    "archive": Archive,
    "cors": Cors,
    "limits": Limits,
    "log": Log,
    "operator": Operator,
}

ARRAYS: Mapping[str, type] = {"tokens": Token, "upstream": Upstream, "tail": Tail}
"""Tables of which there may be several: ``[[tokens]]``, ``[[upstream]]``, ``[[tail]]``."""

Setting = tuple[str, str]
"""Table and key."""

ENVIRONMENT: Mapping[str, Setting] = {
    "AEP_HOST": ("listen", "host"),
    "AEP_PORT": ("listen", "port"),
    "AEP_TOKEN": ("auth", "token"),
    "AEP_BUFFER": ("limits", "buffer_events"),
    "AEP_MAX_SESSIONS": ("limits", "max_sessions"),
    "AEP_MAX_BODY": ("limits", "max_body_bytes"),
    "AEP_MAX_BATCH": ("limits", "max_batch_events"),
    "AEP_MAX_FROM": ("limits", "max_from_positions"),
}

FLAGS: Mapping[str, Setting] = {
    "--host": ("listen", "host"),
    "--port": ("listen", "port"),
    "--token-file": ("auth", "token_file"),
}
