"""Making Events of flags: identity, time, payload."""

from __future__ import annotations

import json
import socket
import time
import uuid
from typing import TYPE_CHECKING
from urllib.parse import quote

import click
import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aep_relay.protocol.event import Event

AGENT = "aep-relay-cli"


def new_id() -> str:
    """Return an id that no other Event has."""
    return str(uuid.uuid4())


def source_of(agent: str, session: str | None = None) -> str:
    """Return the source of what ``agent`` emits from this host."""
    path = f"aep://{quote(socket.gethostname() or 'localhost', safe='')}/agent/{quote(agent, safe='')}"
    return path if session is None else f"{path}/session/{quote(session, safe='')}"


def new_epoch() -> int:
    """Return an epoch after every one that was made here before: milliseconds since 1970."""
    return int(time.time() * 1000)


def parse_data(text: str | None, flag: str = "--data") -> dict[str, object] | None:
    """Return the payload that ``text`` spells. Raises ``click.BadParameter``."""
    from aep_relay.protocol.jsontext import JsonError, loads

    if text is None:
        return None
    try:
        value = loads(text)
    except JsonError as error:
        raise click.BadParameter(str(error), param_hint=flag) from None
    if not isinstance(value, dict):
        raise click.BadParameter("a payload is a JSON object", param_hint=flag)
    return value


def pair(text: str, flag: str) -> tuple[str, str]:
    """Return name and value of ``NAME=VALUE``. Raises ``click.BadParameter``."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise click.BadParameter(f"{text}: write it as NAME=VALUE", param_hint=flag)
    return name, value


def scalar(text: str) -> object:
    """Return the whole number, number, boolean or quoted text that ``text`` looks like, else the text itself."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, str | bool | int | float) else text


def make(members: Mapping[str, object]) -> Event:
    """Return the Event of ``members``, those that are None left out. Raises ``click.UsageError``."""
    from aep_relay.protocol.errors import InvalidEvent
    from aep_relay.protocol.event import decode

    found = {"aep": "0.1", **{name: value for name, value in members.items() if value is not None}}
    try:
        return decode(msgspec.json.encode(found))
    except InvalidEvent as error:
        raise click.UsageError(f"that makes no valid Event: {error.detail}") from None
