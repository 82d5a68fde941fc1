"""Tokens as the configuration gives them: read from files, checked, kept as SHA-256 hashes.

Invariants: what comes out has a hash for every token of ``[[tokens]]``, no two tokens of one name or one hash; the
text of a token is in no message.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import replace
from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING

from aep_relay.config.errors import ConfigError

if TYPE_CHECKING:
    from aep_relay.config.tables import Token

MAX_TOKEN_BYTES = 4096
DEFAULT_NAME = "default"
"""What ``auth.token`` is called."""

_TOKEN = re.compile(r"[\x21-\x7e]+")
_OF_NOTHING = sha256(b"").hexdigest()


def hash_of(token: str) -> str:
    """Return the hash by which the relay knows ``token``, in hexadecimal."""
    return sha256(token.encode("ascii")).hexdigest()


def check_text(token: str, where: str) -> None:
    """Raises ``ConfigError`` for what can't be sent as a bearer token."""
    if not _TOKEN.fullmatch(token):
        raise ConfigError(where, "the token must be printable ASCII without spaces")


def read_file(path: str, where: str) -> tuple[str, list[str]]:
    """Return the token that ``path`` holds, and warnings. Raises ``ConfigError``."""
    try:
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            raw = file.read(MAX_TOKEN_BYTES + 1)
    except OSError as error:
        raise ConfigError(where, f"{path} cannot be read: {error.strerror}") from error
    if len(raw) > MAX_TOKEN_BYTES:
        raise ConfigError(where, f"{path} holds more than {MAX_TOKEN_BYTES} bytes, which is no token")
    token = raw.removesuffix(b"\n").removesuffix(b"\r").decode("latin-1")
    if not token:
        raise ConfigError(where, f"{path} is empty: it must hold the token")
    check_text(token, where)
    return token, readable_by_others(path, mode)


def readable_by_others(path: str, mode: int) -> list[str]:
    """Return a warning if ``path``, whose ``st_mode`` is ``mode``, gives a token away."""
    if stat.S_ISREG(mode) and mode & 0o077:
        return [f"{path} holds the token and others may read it (mode {mode & 0o777:04o}): chmod 600 {path}"]
    return []


class Keeping:
    """Takes the tokens of a configuration in, one after the other."""

    def __init__(self) -> None:
        self.tokens: list[Token] = []
        self.secrets: list[str] = []
        self.warnings: list[str] = []
        self._names = {DEFAULT_NAME}
        self._holders: dict[str, str] = {}

    def keep_default(self, token: str) -> None:
        """Take ``auth.token`` in, so that no other one is the same."""
        self.secrets.append(token)
        self._holders[hash_of(token)] = DEFAULT_NAME

    def keep(self, token: Token, where: str) -> None:
        """Take in a token of ``[[tokens]]`` that stands at ``where``. Raises ``ConfigError``."""
        _check_grants(token, where)
        if token.name in self._names:
            problem = (
                "is how auth.token is called" if token.name == DEFAULT_NAME else "is taken by another token"
            )
            raise ConfigError(f"{where}.name", f"{token.name} {problem}")
        if token.file is not None:
            if token.sha256 is not None:
                raise ConfigError(f"{where}.sha256", "set either sha256 or file, not both")
            text, warnings = read_file(token.file, f"{where}.file")
            self.secrets.append(text)
            self.warnings += warnings
            token = replace(token, sha256=hash_of(text))
        digest = (token.sha256 or "").lower()
        if not digest:
            raise ConfigError(
                f"{where}.sha256", "is missing: set it, or file; `aep-relay token new` makes one"
            )
        if digest == _OF_NOTHING:
            raise ConfigError(f"{where}.sha256", "is the hash of nothing")
        if digest in self._holders:
            raise ConfigError(where, f"is the same token as {self._holders[digest]}")
        if token.expires is not None and token.expires <= datetime.now(UTC):
            self.warnings.append(f"{where}: the token {token.name} expired at {token.expires.isoformat()}")
        self._names.add(token.name)
        self._holders[digest] = token.name
        self.tokens.append(replace(token, sha256=digest))


def _check_grants(token: Token, where: str) -> None:
    """Refuse a narrowing of what is not granted: it was meant to be, or to be something else."""
    needed = {
        "commands": ("control",),
        "capture": ("consume",),
        "events_per_second": ("emit", "control"),
        "max_connections": ("emit", "consume", "control"),
    }
    for name, grants in needed.items():
        if getattr(token, name) is not None and not set(grants) & set(token.grants):
            raise ConfigError(f"{where}.{name}", f"narrows what is not granted: {' or '.join(grants)}")
