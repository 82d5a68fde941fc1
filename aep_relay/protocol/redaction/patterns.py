"""Byte patterns whose cost is linear in the text, whoever wrote the text.

Owns the thin typed face of google-re2 that redaction uses. Patterns and texts are bytes and every byte is one
character (Latin-1), so UTF-8 text passes through without being decoded; a pattern that may match a
byte of 0x80 or above must take whole UTF-8 sequences.

RE2 finds one match in linear time, but a search that is repeated behind every match is linear only if none
looks far beyond the match that it returns. Patterns that could, such as a long token that is none without its
last character, must therefore be searched for on their own and not as one alternative among others.

A text made for it holds thousands of matches, so what one match costs is what counts. The `Match` objects of
google-re2 are made in Python and cost more than the search; here a match is the offsets that the engine returns. It is
asked by names that are not public, so the project is bound to the releases that have them.
Offsets of groups cost as much again, and are asked for only where they can't be told from the match.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, cast

import re2

_MEMORY_BYTES = 32 * 1024 * 1024
"""Bounds a pattern and what RE2 caches for it; a cache that is full starts again."""


Spans = Sequence[tuple[int, int]]
"""Start and end of a match and of each of its groups, in bytes from the start of the text; -1 is none."""

NOWHERE = -1


class _Engine(Protocol):
    def __call__(self, anchor: object, text: bytes, start: int, end: int) -> Spans: ...


class PatternSet(Protocol):
    """Several patterns looked for in one scan."""

    def Match(self, text: bytes) -> list[int] | None: ...


class Pattern:
    """A compiled pattern. Raises ``ValueError`` if it is malformed or too large."""

    __slots__ = ("_find", "_groups")

    def __init__(self, pattern: bytes) -> None:
        self._find = _engine(pattern, never_capture=True)
        self._groups = _engine(pattern, never_capture=False)

    def find(self, text: bytes, position: int = 0) -> tuple[int, int]:
        """Return start and end of the first match from ``position`` on; ``NOWHERE`` is the start of none."""
        return self._find(_ANYWHERE, text, position, len(text))[0]

    def groups(self, text: bytes, position: int = 0) -> Spans:
        """Return the spans of the first match from ``position`` on, which costs twice as much as ``find``."""
        return self._groups(_ANYWHERE, text, position, len(text))

    def is_at(self, text: bytes, position: int) -> bool:
        """Whether the pattern matches from ``position``, and not only behind it."""
        return self._find(_HERE, text, position, len(text))[0][0] >= 0


_ANYWHERE = re2._Anchor.UNANCHORED
_HERE = re2._Anchor.ANCHOR_START


def _options() -> re2.Options:
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.log_errors = False
    options.max_mem = _MEMORY_BYTES
    return options


def _engine(pattern: bytes, *, never_capture: bool) -> _Engine:
    options = _options()
    options.never_capture = never_capture
    try:
        return cast("_Engine", re2.compile(pattern, options)._regexp.Match)
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


Decision = Callable[[bytes, int, int], "bytes | None"]
"""What becomes of ``text[start:end]``, given the text, start and end; ``None``: it stays."""


def replace(pattern: Pattern, text: bytes, decide: Decision) -> bytes:
    """Return ``text`` with each match replaced by what ``decide`` returns for it. The search goes on behind it."""
    pieces: list[bytes] = []
    done = position = 0
    find = pattern.find
    while True:
        start, position = find(text, position)
        if start < 0:
            break
        replacement = decide(text, start, position)
        if replacement is not None:
            pieces += (text[done:start], replacement)
            done = position
    if not pieces:
        return text
    pieces.append(text[done:])
    return b"".join(pieces)


def replace_by(pattern: Pattern, text: bytes, replacement: bytes) -> bytes:
    """Return ``text`` with each match replaced by ``replacement``."""
    return replace(pattern, text, lambda _text, _start, _end: replacement)
