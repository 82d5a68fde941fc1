"""The envelope's rules a second time, plainly and slowly, sharing nothing with the package.

Python's own ``json`` reads the text, numbers become ``Decimal``, objects keep doubled members; then each rule of the
envelope is one line. Used to judge the package's verdict on text that nobody thought of.
"""

from __future__ import annotations

import json
import re
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Never

MAX_LEVELS = 256
MAX_DIGITS = 400
CATEGORIES = [
    "agent",
    "session",
    "run",
    "progress",
    "tool",
    "delegation",
    "attention",
    "resource",
    "error",
    "state",
    "assessment",
    "message",
    "control",
]
STRINGS = [
    "aep",
    "id",
    "type",
    "time",
    "source",
    "agent",
    "session",
    "subject",
    "run",
    "step",
    "cause",
    "traceparent",
    "severity",
    "capture",
]
CORE = {*STRINGS, "seq", "epoch", "data"}
COMMANDS = {f"control.{verb}" for verb in ("attention.respond", "cancel", "pause", "resume")}


class Invalid(Exception):
    """The text is no valid Event."""


class Pairs(list[tuple[str, Any]]):
    """An object's members, doubled ones too."""


def require(condition: object) -> None:
    if not condition:
        raise Invalid


def judge(raw: bytes) -> dict[str, Any]:
    """Return the attributes of a valid Event, ``data`` left out and integers exact, or raise ``Invalid``."""
    try:
        value = json.loads(
            raw.decode("utf-8").strip(" \t\r\n"),
            object_pairs_hook=Pairs,
            parse_int=Decimal,
            parse_float=number,
            parse_constant=constant,
        )
    except (ValueError, RecursionError):
        raise Invalid from None
    require(isinstance(value, Pairs))
    walk(value, 1)
    names = [name for name, _ in value]
    require(len(set(names)) == len(names))
    members = dict(value)
    for name, member in members.items():
        members[name] = attribute(name, member)
    require({"aep", "id", "type", "time", "source", "agent"} <= members.keys())
    require(members["aep"] == "0.1")
    require(members.get("severity", "info") in ("debug", "info", "notice", "warning", "error", "critical"))
    require(members.get("capture", "full") in ("none", "metadata", "redacted", "full"))
    require(is_traceparent(members.get("traceparent", f"00-{'0' * 32}-{'0' * 16}-00")))
    require(is_time(members["time"]))
    require(is_uri(members["source"]))
    scope(members)
    members.pop("data", None)
    return members


def number(token: str) -> Decimal | float:
    """Return a number's exact value, or a float for one whose exponent is beyond even ``Decimal``."""
    try:
        return Decimal(token)
    except InvalidOperation:
        mantissa = token.lower().partition("e")[0]
        return float("nan") if set(mantissa) & set("123456789") else Decimal(0)


def constant(token: str) -> Never:
    raise Invalid


def walk(value: object, level: int) -> None:
    """Check every string and the nesting of the whole text."""
    if isinstance(value, str):
        require(not any("\ud800" <= character <= "\udfff" for character in value))
    elif isinstance(value, list):
        require(level <= MAX_LEVELS)
        for item in value:
            for part in item if isinstance(value, Pairs) else (item,):
                walk(part, level + 1)


def attribute(name: str, value: Any) -> Any:
    if name in STRINGS:
        require(isinstance(value, str) and value)
    elif name in ("seq", "epoch"):
        value = exact(value)
        require(0 <= value <= 2**63 - 1)
    elif name == "data":
        require(isinstance(value, Pairs))
    else:
        require(1 <= len(name) <= 20 and all(c in "abcdefghijklmnopqrstuvwxyz0123456789" for c in name))
        if not isinstance(value, str | bool):
            value = exact(value)
    return value


def exact(value: object) -> int:
    require(isinstance(value, Decimal))
    assert isinstance(value, Decimal)
    if not value:
        return 0
    require(value.adjusted() < MAX_DIGITS)
    require(value == value.to_integral_value())
    return int(value)


def scope(members: dict[str, Any]) -> None:
    category, *segments = members["type"].split(".")
    vendor = segments.pop(0) if category == "x" and segments else None
    words = "abcdefghijklmnopqrstuvwxyz0123456789_"
    require(segments and all(segment and set(segment) <= set(words) for segment in segments))
    if category == "x":
        require(vendor and set(vendor) <= set(words + "-") and len(segments) >= 2)
    else:
        require(category in CATEGORIES)
    if category == "agent":
        require(not members.keys() & {"session", "run", "step", "seq"})
        return
    require("session" in members)
    command = members["type"] in COMMANDS or (category == "x" and segments[0] == "control")
    require(("seq" in members) is not (command or members["type"] == "attention.routed"))


def is_traceparent(text: str) -> bool:
    parts = text.split("-")
    hexadecimal = all(c in "0123456789abcdef" for part in parts for c in part)
    return hexadecimal and [len(part) for part in parts] == [2, 32, 16, 2]


def is_time(text: str) -> bool:
    match = re.fullmatch(
        r"(....)-(..)-(..)[Tt](..):(..):(..)(\.[0-9]+)?([Zz]|[+-]..:..)", text, re.ASCII | re.DOTALL
    )
    if match is None:
        return False
    year, month, day, hour, minute, second, _, zone = match.groups()
    offset = "+00:00" if zone in "Zz" else zone
    fields = (year, month, day, hour, minute, second, offset[1:3], offset[4:6])
    if not all(c in "0123456789" for field in fields for c in field):
        return False
    away = int(offset[1:3]), int(offset[4:6])
    if away > (23, 59) or away[1] > 59:
        return False
    try:  # the calendar of year 0 is that of 2000
        datetime(int(year) or 2000, int(month), int(day), int(hour), int(minute), min(int(second), 59))
    except ValueError:
        return False
    minutes = int(hour) * 60 + int(minute) - (away[0] * 60 + away[1]) * (-1 if offset[0] == "-" else 1)
    return int(second) <= 59 or (int(second) == 60 and minutes % 1440 == 1439)


def is_uri(text: str) -> bool:
    scheme, colon, rest = text.partition(":")
    if not colon or not re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*", scheme):
        return False
    rest, _, fragment = rest.partition("#")
    rest, _, query = rest.partition("?")
    if not all(plain(part, ":@/?") for part in (fragment, query)):
        return False
    if not rest.startswith("//"):
        return plain(rest, ":@/")
    authority, _, path = rest[2:].partition("/")
    user, _at, place = authority.rpartition("@")
    literal = re.fullmatch(r"\[[0-9A-Za-z:.]+\](.*)", place, re.DOTALL)
    host, colon, port = ("", literal[1][:1], literal[1][1:]) if literal else place.partition(":")
    return (
        plain(path, ":@/")
        and plain(user, ":")
        and plain(host, "")
        and colon in ("", ":")
        and all(c in "0123456789" for c in port)
    )


def plain(text: str, more: str) -> bool:
    text = re.sub("%[0-9A-Fa-f]{2}", "", text)
    return all((c.isascii() and c.isalnum()) or c in "-._~!$&'()*+,;=" + more for c in text)
