"""What a setting may be: from the value that TOML, the environment or a flag gave to the one the relay works with.

A dataclass field's type chooses the converter; its metadata, which ``setting`` makes, narrows it: ``minimum`` and
``maximum`` for numbers, ``choices`` or ``form`` for text, ``each`` for the members of an array.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import field
from datetime import datetime
from typing import Any, NewType

from aep_relay.config.errors import Wrong
from aep_relay.config.hosts import split_bind
from aep_relay.protocol import filters
from aep_relay.protocol.errors import InvalidFilter

Allowed = Mapping[str, Any]

FilterText = NewType("FilterText", str)
"""A valid attr-match filter, as JSON."""

_ORIGIN = re.compile(r"\*|[a-z][a-z0-9+.-]*://[^/\s]+")
_HOST = re.compile(r"\*|[a-z0-9_-]+(\.[a-z0-9_-]+)*\.?|\[?[0-9a-f.]*:[0-9a-f:.]*:[0-9a-f:.]*\]?")
MAX_PATTERN_CHARACTERS = 1024

URL = (
    re.compile(r"https?://([A-Za-z0-9._-]+|\[[0-9a-f:]+\])(:\d{1,5})?(/[!-~]*)?"),
    'must be a URL such as "https://example.org/relay"',
)
NAME = (
    re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"),
    "must be 1 to 64 letters, digits, dots, hyphens or underscores",
)
OWNER = (
    re.compile(r"[a-z_0-9][A-Za-z0-9._-]*\$?(:[a-z_0-9][A-Za-z0-9._-]*)?|:[a-z_0-9][A-Za-z0-9._-]*"),
    'must be a user, "user:group" or ":group"',
)
SHA256 = (re.compile(r"[0-9A-Fa-f]{64}"), "must be a SHA-256 hash: 64 hexadecimal digits")


def setting(default: object, why: str, **allowed: object) -> Any:
    """Declare a setting with its default and the reason it is there."""
    return field(default=default, metadata={"why": why, **allowed})


def secret(why: str, **allowed: object) -> Any:
    """Declare a setting that is absent by default and shown nowhere."""
    return field(default=None, repr=False, metadata={"why": why, **allowed})


def secrets(why: str, **allowed: object) -> Any:
    """Declare a setting that is an empty array by default and shown nowhere."""
    return field(default=(), repr=False, metadata={"why": why, **allowed})


def required(why: str, **allowed: object) -> Any:
    """Declare a setting that has to be given."""
    return field(metadata={"why": why, **allowed})


def origin(text: str) -> str:
    """Return the origin of a web page in lower case. Raises ``Wrong``."""
    text = text.lower()
    if not _ORIGIN.fullmatch(text):
        raise Wrong('each must be "*" or an origin such as "https://example.org", without a path')
    return text


def host(text: str) -> str:
    """Return a name or address as it stands in a Host field, without its port. Raises ``Wrong``."""
    text = text.lower()
    if not _HOST.fullmatch(text):
        raise Wrong('each must be "*" or a name or address such as "relay.example.org", without a port')
    return f"[{text.strip('[]')}]" if ":" in text else text


def bind(text: str) -> str:
    """Return a place to listen. Raises ``Wrong``."""
    if split_bind(text) is None:
        raise Wrong('each must be such as "10.0.0.5:8787", "[::1]:8787" or "unix:/run/aep-relay.sock"')
    return text


def pattern(text: str) -> str:
    """Return a pattern in which ``*`` stands for any run of characters. Raises ``Wrong``."""
    if not text or "\0" in text or len(text) > MAX_PATTERN_CHARACTERS:
        raise Wrong(
            f'each must be a name of 1 to {MAX_PATTERN_CHARACTERS} characters, "*" for any run of them'
        )
    return text


def name(text: str) -> str:
    """Return a text that is not empty. Raises ``Wrong``."""
    if not text or "\0" in text:
        raise Wrong("each must be a string that is not empty")
    return text


def one_of(*choices: str) -> Callable[[str], str]:
    """Return a check for members that are one of ``choices``."""

    def check(text: str) -> str:
        if text not in choices:
            raise Wrong(f"each must be one of {', '.join(choices)}")
        return text

    return check


def convert(value: object, type_: object, allowed: Allowed) -> object:
    """Return ``value`` as a setting of ``type_``. Raises ``Wrong``."""
    return _CONVERTERS[type_](value, allowed)


def _flag(value: object, allowed: Allowed) -> bool:
    if not isinstance(value, bool):
        raise Wrong("must be true or false")
    return value


def _whole(value: object, allowed: Allowed) -> int:
    low, high = allowed["minimum"], allowed["maximum"]
    if isinstance(value, str) and re.fullmatch("[0-9]{1,20}", value):
        value = int(value)  # the environment holds text only
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise Wrong(f"must be a whole number from {low} to {high}")
    return value


def _number(value: object, allowed: Allowed) -> float:
    low, high = allowed["minimum"], allowed["maximum"]
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise Wrong(f"must be a number from {low} to {high}")
    return float(value)


def _text(value: object, allowed: Allowed) -> str:
    choices: tuple[str, ...] | None = allowed.get("choices")
    if choices is not None and value not in choices:
        raise Wrong(f"must be one of {', '.join(choices)}")
    if not isinstance(value, str) or "\0" in value:
        raise Wrong("must be a string")
    if "form" in allowed and value:
        form, problem = allowed["form"]
        if not form.fullmatch(value):
            raise Wrong(problem)
    return value


def _given_text(value: object, allowed: Allowed) -> str:
    text = _text(value, allowed)
    if not text:
        raise Wrong("must not be empty")
    return text


def _optional_text(value: object, allowed: Allowed) -> str | None:
    return None if value == "" else _text(value, allowed)


def _texts(value: object, allowed: Allowed) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(member, str) for member in value):
        raise Wrong("must be an array of strings")
    if "least" in allowed and len(value) < allowed["least"]:
        raise Wrong("must not be empty")
    return tuple(dict.fromkeys(allowed["each"](member) for member in value))


def _instant(value: object, allowed: Allowed) -> datetime:
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise Wrong("must be a date and time with an offset, such as 2030-01-31T00:00:00Z, and no string")
    return value


def _filter(value: object, allowed: Allowed) -> FilterText:
    if not isinstance(value, dict):
        raise Wrong('must be a table such as { type = ["attention.*"] }')
    try:
        filters.parse(value)
    except InvalidFilter as error:
        raise Wrong(error.detail) from None
    return FilterText(json.dumps(value, ensure_ascii=False))


_CONVERTERS: Mapping[object, Callable[[object, Allowed], object]] = {
    bool: _flag,
    int: _whole,
    int | None: _whole,
    float: _number,
    float | None: _number,
    str: _given_text,
    str | None: _optional_text,
    tuple[str, ...]: _texts,
    tuple[str, ...] | None: _texts,
    datetime | None: _instant,
    FilterText: _filter,
}
