"""What the operator can set: a TOML file, under the environment, under command-line flags.

Owns every setting but the limits (``hub.limits``): its name, its default, what it may be, and why it is
there. A setting is a field of one of the dataclasses below; the dataclass is its table in the file. Unknown
settings, wrong types and values out of range are refused by full path, and so are settings that contradict
each other or would leave a relay open to the network (AEP-0003 §8.1). ``""`` stands for "not set" wherever
a setting can be absent; an environment variable that is empty counts as not set, ``AEP_TOKEN`` too.
"""

from __future__ import annotations

import difflib
import os
import re
import stat
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any, get_type_hints

from aep_relay.hub.limits import Limits

_MAX_TOKEN_BYTES = 4096
_TOKEN = re.compile(r"[\x21-\x7e]+")
_ORIGIN = re.compile(r"\*|[a-z][a-z0-9+.-]*://[^/\s]+")
_URL = re.compile(r"https?://[A-Za-z0-9._-]+(:\d{1,5})?(/[!-~]*)?|https?://\[[0-9a-f:]+\](:\d{1,5})?(/[!-~]*)?")
_LOOPBACK_ORIGIN = re.compile(r"https?://(localhost|127(\.\d{1,3}){3}|\[::1\])(:\d{1,5})?")


class ConfigError(Exception):
    """A configuration that can't be used; names the setting as the operator wrote it, and what is allowed."""

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(f"{where}: {problem}")
        self.where = where
        self.problem = problem


class _Wrong(ValueError):
    """What is wrong with a value, before it is known where it was given."""


def _setting(default: object, why: str, **allowed: object) -> Any:
    return field(default=default, metadata={"why": why, **allowed})


@dataclass(frozen=True, slots=True)
class Listen:
    """Where Events come in and go out; ``unix_mode`` holds permission bits."""

    host: str | None = _setting("127.0.0.1", 'address or name of the data port; "" for no TCP at all')
    port: int = _setting(8787, "TCP port; 0 lets the system choose", minimum=0, maximum=65535)
    unix: str | None = _setting(None, "path of a unix socket to listen on as well", path=True)
    unix_mode: int = _setting(0o600, "who may connect to the unix socket", minimum=0, maximum=0o777)


@dataclass(frozen=True, slots=True)
class Auth:
    """Who may connect. ``token`` is never empty: None is the only way to say that there is none."""

    token: str | None = field(
        default=None,
        repr=False,
        metadata={"why": "bearer token that every peer must show; without one, control is off"},
    )
    token_file: str | None = _setting(None, "file that holds the token, so that this one need not", path=True)
    query_token: bool = _setting(True, "also take the token as ?access_token=, as browsers must send it")
    behind_tls_proxy: bool = _setting(False, "a proxy in front terminates TLS; needed off loopback")
    allow_plain_http: bool = _setting(False, "serve a network in clear text; the opt-out from TLS")


@dataclass(frozen=True, slots=True)
class Cors:
    """Which web pages may use the relay."""

    allowed_origins: tuple[str, ...] = _setting(
        (), 'origins of web pages, or "*"; empty: any if a token is set, else those of this host', origin=True
    )


@dataclass(frozen=True, slots=True)
class Log:
    """What is said on standard error."""

    level: str = _setting("info", "least level", choices=("debug", "info", "warning", "error"))
    format: str = _setting(
        "auto", "auto: console on a terminal, else JSON lines", choices=("auto", "console", "json")
    )


@dataclass(frozen=True, slots=True)
class Operator:
    """Where dashboard, metrics and health pages are served, apart from the data port."""

    enabled: bool = _setting(True, "serve them at all")
    host: str | None = _setting("127.0.0.1", 'address or name; "" for no TCP')
    port: int = _setting(8788, "TCP port; 0 lets the system choose", minimum=0, maximum=65535)
    unix: str | None = _setting(None, "path of a unix socket to serve on as well", path=True)
    relay_url: str | None = _setting(None, "the data port's URL for the dashboard, if a proxy is between", url=True)
    max_loop_latency_seconds: float = _setting(0.5, "later than this: not ready", minimum=0.01, maximum=60)


@dataclass(frozen=True, slots=True)
class Config:
    """A whole, checked configuration. ``warnings`` are worth a look but no reason not to start."""

    listen: Listen = field(default_factory=Listen)
    auth: Auth = field(default_factory=Auth)
    cors: Cors = field(default_factory=Cors)
    limits: Limits = field(default_factory=Limits)
    log: Log = field(default_factory=Log)
    operator: Operator = field(default_factory=Operator)
    warnings: tuple[str, ...] = ()

    def allows_origin(self, origin: str) -> bool:
        """Whether a web page of ``origin`` (the header's value) may use the relay.

        With a token any page may by default, since it has to know the token. Without one, a page from
        elsewhere could read the Events of the host its visitor sits at, so only pages of that host may.
        """
        allowed = self.cors.allowed_origins
        if allowed:
            return "*" in allowed or origin.lower() in allowed
        return self.auth.token is not None or _LOOPBACK_ORIGIN.fullmatch(origin) is not None


TABLES: Mapping[str, type] = {
    "listen": Listen,
    "auth": Auth,
    "cors": Cors,
    "limits": Limits,
    "log": Log,
    "operator": Operator,
}

_Setting = tuple[str, str]

ENVIRONMENT: Mapping[str, _Setting] = {
    "AEP_HOST": ("listen", "host"),
    "AEP_PORT": ("listen", "port"),
    "AEP_TOKEN": ("auth", "token"),
    "AEP_BUFFER": ("limits", "buffer_events"),
    "AEP_MAX_SESSIONS": ("limits", "max_sessions"),
    "AEP_MAX_BODY": ("limits", "max_body_bytes"),
    "AEP_MAX_BATCH": ("limits", "max_batch_events"),
    "AEP_MAX_FROM": ("limits", "max_from_positions"),
}

FLAGS: Mapping[str, _Setting] = {
    "--host": ("listen", "host"),
    "--port": ("listen", "port"),
    "--token-file": ("auth", "token_file"),
}

# Two ways to say the same thing: a layer that gives one drops what a layer below gave of the other.
_RIVALS: Mapping[_Setting, _Setting] = {
    ("auth", "token"): ("auth", "token_file"),
    ("auth", "token_file"): ("auth", "token"),
}


@dataclass(frozen=True, slots=True)
class _Given:
    value: object
    where: str


def load(path: Path | None, env: Mapping[str, str], flags: Mapping[str, object]) -> Config:
    """The configuration of ``path`` (None: the defaults), overridden by ``env``, overridden by ``flags``.

    ``flags`` maps the names in ``FLAGS`` to values; None stands for a flag that was not given. Raises
    ConfigError.
    """
    given = {} if path is None else _read_file(path)
    token_of_file = given.get(("auth", "token"))
    _overlay(given, ENVIRONMENT, {name: value for name, value in env.items() if value})
    for name, value in flags.items():
        if value == "":  # an unset shell variable must not take the token away
            raise ConfigError(name, "must not be empty")
    _overlay(given, FLAGS, {name: value for name, value in flags.items() if value is not None})
    tables = {name: _build(name, table, given) for name, table in TABLES.items()}
    config, warnings = _with_token(Config(**tables), given)
    if path is not None and config.auth.token and given.get(("auth", "token")) is token_of_file is not None:
        warnings += _readable_by_others(str(path), path.stat().st_mode)
    _check_limits(config.limits)
    _check_listeners(config)
    return replace(config, warnings=tuple(warnings + _check_exposure(config)))


def _read_file(path: Path) -> dict[_Setting, _Given]:
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(str(path), f"cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(str(path), f"is not TOML: {error}") from error
    given: dict[_Setting, _Given] = {}
    for table, members in document.items():
        where = f"{path}: {table}"
        if table not in TABLES:
            raise ConfigError(where, f"no such table{_closest(table, TABLES)}")
        if not isinstance(members, dict):
            raise ConfigError(where, "must be a table")
        known = {f.name: f for f in fields(TABLES[table])}
        for key, value in members.items():
            where = f"{path}: {table}.{key}"
            if key not in known:
                raise ConfigError(where, f"no such setting{_closest(key, known)}")
            if known[key].metadata.get("path") and isinstance(value, str) and value:
                value = str(path.parent / value)
            given[table, key] = _Given(value, where)
    token, token_file = given.get(("auth", "token")), given.get(("auth", "token_file"))
    if token and token_file and token.value and token_file.value:
        raise ConfigError(token.where, "set either token or token_file, not both")
    return given


def _closest(name: str, known: Mapping[str, object]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]}?" if close else f"; known are {', '.join(known)}"


def _overlay(
    given: dict[_Setting, _Given], names: Mapping[str, _Setting], values: Mapping[str, object]
) -> None:
    for name, setting in names.items():
        if name in values:
            given.pop(_RIVALS.get(setting, setting), None)
            given[setting] = _Given(values[name], name)


def _build(name: str, table: type, given: Mapping[_Setting, _Given]) -> Any:
    hints = get_type_hints(table)
    members: dict[str, object] = {}
    for setting in fields(table):
        entry = given.get((name, setting.name))
        if entry is None:
            continue
        try:
            members[setting.name] = _CONVERTERS[hints[setting.name]](entry.value, setting.metadata)
        except _Wrong as error:
            raise ConfigError(entry.where, str(error)) from error
    return table(**members)


def _flag(value: object, allowed: Mapping[str, Any]) -> bool:
    if not isinstance(value, bool):
        raise _Wrong("must be true or false")
    return value


def _whole(value: object, allowed: Mapping[str, Any]) -> int:
    low, high = allowed["minimum"], allowed["maximum"]
    if isinstance(value, str) and re.fullmatch("[0-9]{1,20}", value):
        value = int(value)  # the environment holds text only
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise _Wrong(f"must be a whole number from {low} to {high}")
    return value


def _number(value: object, allowed: Mapping[str, Any]) -> float:
    low, high = allowed["minimum"], allowed["maximum"]
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise _Wrong(f"must be a number from {low} to {high}")
    return float(value)


def _text(value: object, allowed: Mapping[str, Any]) -> str:
    choices: tuple[str, ...] | None = allowed.get("choices")
    if choices is not None and value not in choices:
        raise _Wrong(f"must be one of {', '.join(choices)}")
    if not isinstance(value, str) or "\0" in value:
        raise _Wrong("must be a string")
    return value


def _optional_text(value: object, allowed: Mapping[str, Any]) -> str | None:
    text = _text(value, allowed) or None
    if text is not None and "url" in allowed and not _URL.fullmatch(text):
        raise _Wrong('must be a URL such as "https://example.org/relay"')
    return text


def _texts(value: object, allowed: Mapping[str, Any]) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(member, str) for member in value):
        raise _Wrong("must be an array of strings")
    members = tuple(member.lower() for member in value)
    for member in members:
        if not _ORIGIN.fullmatch(member):
            raise _Wrong('each must be "*" or an origin such as "https://example.org", without a path')
    return members


_CONVERTERS: Mapping[object, Callable[[object, Mapping[str, Any]], object]] = {
    bool: _flag,
    int: _whole,
    float: _number,
    str: _text,
    str | None: _optional_text,
    tuple[str, ...]: _texts,
}


def _with_token(config: Config, given: Mapping[_Setting, _Given]) -> tuple[Config, list[str]]:
    auth, warnings = config.auth, list[str]()
    where = "auth.token"
    token = auth.token
    if auth.token_file is not None:
        where = given["auth", "token_file"].where
        token, warnings = _read_token(auth.token_file, where)
    elif token is not None:
        where = given["auth", "token"].where
    if token is not None and not _TOKEN.fullmatch(token):
        raise ConfigError(where, "the token must be printable ASCII without spaces")
    return replace(config, auth=replace(auth, token=token)), warnings


def _read_token(path: str, where: str) -> tuple[str, list[str]]:
    try:
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            raw = file.read(_MAX_TOKEN_BYTES + 1)
    except OSError as error:
        raise ConfigError(where, f"{path} cannot be read: {error.strerror}") from error
    if len(raw) > _MAX_TOKEN_BYTES:
        raise ConfigError(where, f"{path} holds more than {_MAX_TOKEN_BYTES} bytes, which is no token")
    token = raw.removesuffix(b"\n").removesuffix(b"\r").decode("latin-1")
    if not token:
        raise ConfigError(where, f"{path} is empty: it must hold the token")
    return token, _readable_by_others(path, mode)


def _readable_by_others(path: str, mode: int) -> list[str]:
    if stat.S_ISREG(mode) and mode & 0o077:
        return [f"{path} holds the token and others may read it (mode {mode & 0o777:04o}): chmod 600 {path}"]
    return []


def _check_limits(limits: Limits) -> None:
    if limits.soft_limit_bytes >= limits.hard_limit_bytes:
        raise ConfigError("limits.soft_limit_bytes", "must be less than limits.hard_limit_bytes")
    if limits.max_event_bytes > limits.hard_limit_bytes // 2:
        most = limits.hard_limit_bytes // 2
        raise ConfigError(
            "limits.max_event_bytes", f"must be at most half of limits.hard_limit_bytes, which is {most}"
        )
    if not limits.max_event_bytes <= limits.max_session_bytes <= limits.max_buffer_bytes:
        raise ConfigError(
            "limits.max_session_bytes", "must be from limits.max_event_bytes to limits.max_buffer_bytes"
        )
    if limits.ping_interval_seconds >= limits.ping_timeout_seconds:
        raise ConfigError("limits.ping_interval_seconds", "must be less than limits.ping_timeout_seconds")


def _check_listeners(config: Config) -> None:
    listen, operator = config.listen, config.operator
    if listen.host is None and listen.unix is None:
        raise ConfigError("listen.host", "nothing to listen on: set listen.host or listen.unix")
    if operator.enabled and operator.host is None and operator.unix is None:
        raise ConfigError(
            "operator.host", "nothing to serve on: set it or operator.unix, or operator.enabled = false"
        )


def _check_exposure(config: Config) -> list[str]:
    """Refuse to be open to the network (AEP-0003 §8.1); returns warnings."""
    auth, operator = config.auth, config.operator
    bound = {"listen.host": config.listen.host, "operator.host": operator.host if operator.enabled else None}
    exposed = {where: host for where, host in bound.items() if host is not None and not _is_loopback(host)}
    if auth.behind_tls_proxy and auth.token is None:
        raise ConfigError(
            "auth.behind_tls_proxy",
            "a relay that others reach through a proxy needs a token: set AEP_TOKEN, --token-file or "
            "auth.token_file",
        )
    for where, host in exposed.items():
        if auth.token is None:
            raise ConfigError(
                where,
                f"{host} is not loopback, and without a token anyone there could read and send Events: "
                "set AEP_TOKEN, --token-file or auth.token_file, or listen on 127.0.0.1",
            )
        if not auth.behind_tls_proxy and not auth.allow_plain_http:
            raise ConfigError(
                where,
                f"{host} is not loopback, and the token would cross the network in clear text: set "
                "auth.behind_tls_proxy = true if a proxy in front terminates TLS, or "
                "auth.allow_plain_http = true to accept that",
            )
    if exposed and not auth.behind_tls_proxy:
        return ["auth.allow_plain_http is set: the token and all Events cross the network in clear text"]
    return []


def _is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False  # a name: wherever it leads today, it may lead elsewhere tomorrow
