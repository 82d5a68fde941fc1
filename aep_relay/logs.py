"""What the relay says on standard error: structured, one line per record, and never a secret.

Owns the set-up of structlog and the bridge from the standard library's ``logging``, so that libraries go the
same way. Every record passes ``Cleaner`` last before it is rendered: whatever peers put into names, paths and
headers, no record can forge a second line, move a terminal's cursor, or carry a token (AEP-0003 §8.1). A
stream that can't be written to is no reason to end a connection: the record is lost. Nor is one that nobody reads a
reason to wait: that is for ``stderr`` to see to.
"""

from __future__ import annotations

import logging
import math
import re
import sys
import traceback
from collections.abc import Iterable, Mapping, MutableMapping
from functools import partial
from typing import Any, TextIO
from urllib.parse import quote

import structlog

from aep_relay.stderr import HeldStream

LEVELS: Mapping[str, int] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}

MASK = "[masked]"
MAX_TEXT_CHARACTERS = 2048
SHORTEST_SECRET_CHARACTERS = 4
"""A shorter one can be guessed, and masking it would make the log unreadable without hiding anything."""
MAX_DEPTH = 5
MAX_MEMBERS = 256

_SECRET_NAMES = frozenset({"authorization", "proxy-authorization", "cookie", "token", "access_token"})
# A query may spell any letter of a name as %XX, and a URL may stand inside another one's query. "a bearer token is
# required" is what relays say, and holds no secret.
_ACCESS_TOKEN = "".join(f"(?:{letter}|%{ord(letter):02x})" for letter in "access_token")
_SECRETS = re.compile(
    rf"""({_ACCESS_TOKEN}["']?\s*(?:[=:]|%3d)\s*["']?)[^\s"'&,;\#]+
    |((?:authorization|cookie)["']?\s*[:=,]\s*(?:b?["'])?)[^\r\n"']+
    |(\b(?:bearer|basic)\s+)(?!token(?![^\s"',;]))[^\s"',;]+""",
    re.IGNORECASE | re.VERBOSE,
)


def configure(level: str, style: str, stream: TextIO, secrets: Iterable[str] = ()) -> None:
    """Send all logging of the process to ``stream``, from ``level`` (a key of ``LEVELS``) upwards.

    ``style`` is ``json``, ``console``, or ``auto``: console on a terminal, else JSON. ``secrets`` are strings
    that no record may hold, such as the relay's token. May be called again to change any of them.
    """
    terminal = stream.isatty()
    renderer: structlog.typing.Processor = structlog.processors.JSONRenderer()
    if style == "console" or (style == "auto" and terminal):
        renderer = structlog.dev.ConsoleRenderer(colors=terminal)
    processors: list[structlog.typing.Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _add_traceback,
        Cleaner(secrets),
        _in_reading_order,
        renderer,
    ]
    if isinstance(stream, HeldStream):
        stream.outlet.describe = partial(_of_losses, processors)
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=lambda *_: _Stream(stream),
        cache_logger_on_first_use=False,
    )
    root = logging.getLogger()
    root.handlers = [_Bridge()]
    root.setLevel(LEVELS[level])
    # Below info this one logs every frame: the relay logs nothing per Event, and no payload.
    logging.getLogger("websockets").setLevel(max(LEVELS[level], logging.INFO))


def _of_losses(processors: Iterable[structlog.typing.Processor], lines: int) -> str:
    """Return a record that tells how many were lost, of whatever level."""
    record: Any = {"event": "log records lost", "records": lines}
    for process in processors:
        record = process(None, "error", record)
    return str(record)


class _Stream:
    """The end of the chain: one write per record."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def msg(self, line: str) -> None:
        try:
            self._stream.write(line + "\n")
            self._stream.flush()
        except (OSError, ValueError):  # a closed pipe, a closed file
            return

    debug = info = warning = error = critical = exception = msg


class _Bridge(logging.Handler):
    """Hands records of the standard library's ``logging`` to structlog."""

    def emit(self, record: logging.LogRecord) -> None:
        level = min(max(record.levelno // 10 * 10, logging.DEBUG), logging.CRITICAL)
        try:
            text = record.getMessage()
        except (TypeError, ValueError):  # arguments that don't fit the message
            text = str(record.msg)
        structlog.get_logger().log(level, text, logger=record.name, exc_info=record.exc_info)


def _add_traceback(logger: object, method: str, record: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Replace ``exc_info`` by ``traceback``, a list of lines: never the values of local variables."""
    given = record.pop("exc_info", None)
    error = given[1] if isinstance(given, tuple) else sys.exception() if given is True else given
    if isinstance(error, BaseException):
        record["traceback"] = "".join(traceback.format_exception(error)).splitlines()
    return record


def _in_reading_order(
    logger: object, method: str, record: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    first = {name: record[name] for name in ("timestamp", "level", "event") if name in record}
    return {**first, **record}


class Cleaner:
    """A structlog processor: makes a record safe to print, whatever it holds.

    Values become what JSON can hold. Secrets are masked, control and other unprintable characters are
    escaped, long texts, long lists and deep nestings are cut.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        given = {secret for secret in secrets if len(secret) >= SHORTEST_SECRET_CHARACTERS}
        spellings = given | {quote(secret, safe="") for secret in given}
        self._secrets = sorted(spellings, key=len, reverse=True)
        self._longest = max(map(len, self._secrets), default=0)

    def __call__(
        self, logger: object, method: str, record: MutableMapping[str, Any]
    ) -> MutableMapping[str, Any]:
        return self._members(record, 0)

    def text(self, text: str) -> str:
        """``text`` on one line, without secrets, at most about ``MAX_TEXT_CHARACTERS`` long."""
        length = len(text)
        searched = MAX_TEXT_CHARACTERS + self._longest
        if length > searched:
            # Peers choose how long it is: what is not printed is not searched.
            text = text[:searched]
        for secret in self._secrets:
            text = text.replace(secret, MASK)
        text = _SECRETS.sub(lambda found: f"{found[1] or found[2] or found[3]}{MASK}", text)
        if length > searched:
            # The end may hold the beginning of a secret.
            text = text[: max(0, len(text) - self._longest)]
        if length > searched or len(text) > MAX_TEXT_CHARACTERS:
            text = f"{text[:MAX_TEXT_CHARACTERS]}... ({length} characters)"
        if text.isprintable():
            return text
        return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)

    def _value(self, value: object, depth: int) -> Any:
        if value is None or isinstance(value, bool | int):
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else str(value)
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, bytes | bytearray):
            return self.text(value.decode("utf-8", "backslashreplace"))
        if depth < MAX_DEPTH and isinstance(value, Mapping):
            return self._members(value, depth + 1)
        if depth < MAX_DEPTH and isinstance(value, list | tuple | set | frozenset):
            return self._list(list(value), depth + 1)
        return self.text(str(value))

    def _members(self, members: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        return {
            self.text(str(name)): MASK if value and _names_secret(name) else self._value(value, depth)
            for name, value in list(members.items())[:MAX_MEMBERS]
        }

    def _list(self, values: list[object], depth: int) -> list[Any]:
        if len(values) == 2 and _names_secret(values[0]):  # a header as a pair
            values = [values[0], MASK]
        return [self._value(value, depth) for value in values[:MAX_MEMBERS]]


def _names_secret(name: object) -> bool:
    if isinstance(name, bytes | bytearray):
        name = name.decode("latin-1")
    return isinstance(name, str) and name.lower() in _SECRET_NAMES
