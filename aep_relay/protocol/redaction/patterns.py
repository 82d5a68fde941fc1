"""Byte patterns whose cost is linear in the text, whoever wrote the text.

Owns the thin typed face of google-re2 that redaction uses. Patterns and texts are bytes and every byte is one
character (Latin-1), so UTF-8 text passes through without being decoded; a pattern that may match a
byte of 0x80 or above must take whole UTF-8 sequences.

RE2 finds one match in linear time, but a search that is repeated behind every match is linear only if none
looks far beyond the match that it returns. Patterns that could, such as a long token that is none without its
last character, must therefore be searched for on their own and not as one alternative among others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, cast

import re2

_MEMORY_BYTES = 32 * 1024 * 1024
"""Bounds a pattern and what RE2 caches for it; a cache that is full starts again."""


class Match(Protocol):
    """One match; offsets are in bytes from the start of the text."""

    def start(self, group: int = 0) -> int: ...

    def end(self, group: int = 0) -> int: ...

    def group(self, group: int = 0) -> bytes | None: ...


class Pattern(Protocol):
    """A compiled pattern."""

    def search(self, text: bytes, pos: int = 0) -> Match | None: ...

    def match(self, text: bytes, pos: int = 0) -> Match | None: ...

    def fullmatch(self, text: bytes) -> Match | None: ...


class PatternSet(Protocol):
    """Several patterns looked for in one scan."""

    def Match(self, text: bytes) -> list[int] | None: ...


def _options() -> re2.Options:
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.log_errors = False
    options.max_mem = _MEMORY_BYTES
    return options


def compile_pattern(pattern: bytes) -> Pattern:
    """Compile ``pattern`` (RE2 syntax). Raises ``ValueError`` if it is malformed or too large."""
    try:
        return cast("Pattern", re2.compile(pattern, _options()))
    except re2.error as error:
        raise ValueError(f"not a usable pattern: {error!s:.200}") from error


def compile_set(patterns: Sequence[bytes]) -> PatternSet:
    """Compile a set, whose ``Match`` lists the indices of the patterns found; ``None`` if there are none.

    Raises ``ValueError`` if a pattern is malformed or the set too large.
    """
    pattern_set = re2.Set.SearchSet(_options())
    try:
        for pattern in patterns:
            pattern_set.Add(pattern)
        pattern_set.Compile()
    except re2.error as error:
        raise ValueError(f"not a usable set of patterns: {error!s:.200}") from error
    return cast("PatternSet", pattern_set)


Decision = Callable[[bytes, Match], "bytes | None"]


def replace(pattern: Pattern, text: bytes, decide: Decision, *, resume_group: int | None = None) -> bytes:
    """Return ``text`` with each match replaced by ``decide(text, match)``, or kept if that is ``None``.

    The search goes on behind each match; behind one that was kept, where ``resume_group`` starts if that is given.
    """
    pieces: list[bytes] = []
    done = position = 0
    while (match := pattern.search(text, position)) is not None:
        replacement = decide(text, match)
        position = match.end()
        if replacement is None:
            if resume_group is not None:
                position = match.start(resume_group)
        else:
            pieces += (text[done : match.start()], replacement)
            done = position
    if not pieces:
        return text
    pieces.append(text[done:])
    return b"".join(pieces)
