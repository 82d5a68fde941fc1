"""What single settings can't show: settings that contradict each other, or leave a relay open to the network."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from aep_relay.config.capturing import redactor
from aep_relay.config.errors import ConfigError
from aep_relay.config.hosts import is_loopback, split_bind

if TYPE_CHECKING:
    from aep_relay.config.tables import Config
    from aep_relay.hub.limits import Limits

_HOW_TO_SET_A_TOKEN = "set AEP_TOKEN, --token-file, auth.token_file or [[tokens]]"  # noqa: S105


def check(config: Config) -> list[str]:
    """Return warnings about ``config`` as a whole. Raises ``ConfigError``."""
    _check_limits(config.limits)
    _check_listeners(config)
    redactor(config.capture)
    if config.cards.policy != "off" and config.cards.keys is None:
        raise ConfigError(
            "cards.keys", f"cards.policy is {config.cards.policy}: set the JWKS file to check cards by"
        )
    return _check_exposure(config)


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
    if listen.host is None and listen.unix is None and not listen.also:
        raise ConfigError("listen.host", "nothing to listen on: set listen.host or listen.unix")
    if operator.enabled and operator.host is None and operator.unix is None:
        raise ConfigError(
            "operator.host", "nothing to serve on: set it or operator.unix, or operator.enabled = false"
        )


def _check_exposure(config: Config) -> list[str]:
    """Refuse to be open to the network (AEP-0003 §8.1); returns warnings."""
    auth, operator = config.auth, config.operator
    bound = [*_bound(config), ("operator.host", operator.host if operator.enabled else None)]
    exposed = [(where, host) for where, host in bound if host is not None and not is_loopback(host)]
    if auth.behind_tls_proxy and not config.has_tokens:
        raise ConfigError(
            "auth.behind_tls_proxy",
            f"a relay that others reach through a proxy needs a token: {_HOW_TO_SET_A_TOKEN}",
        )
    for where, host in exposed:
        if not config.has_tokens:
            raise ConfigError(
                where,
                f"{host} is not loopback, and without a token anyone there could read and send Events: "
                f"{_HOW_TO_SET_A_TOKEN}, or listen on 127.0.0.1",
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


def _bound(config: Config) -> list[tuple[str, str | None]]:
    """Return the hosts of the data port's TCP addresses, each with what put it there."""
    if config.inherited:
        return [("inherited socket", host) for host in config.inherited]
    also = [split_bind(text) for text in config.listen.also]
    return [
        ("listen.host", config.listen.host),
        *(("listen.also", place[0]) for place in also if isinstance(place, tuple)),
    ]


def inheriting(config: Config, hosts: tuple[str, ...]) -> Config:
    """Return ``config`` for a relay that was passed sockets bound to ``hosts``. Raises ``ConfigError``."""
    config = replace(config, inherited=hosts)
    return replace(config, warnings=tuple(dict.fromkeys((*config.warnings, *check(config)))))
