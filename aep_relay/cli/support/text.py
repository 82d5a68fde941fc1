"""Text from outside, made fit for a terminal.

An Event may hold what moves a cursor, sets a title, or turns the reading direction. Invariant: what passes ``shown``
has no character that a terminal acts on or that is not seen; what passes ``shown_json`` besides means the same JSON.
"""

from __future__ import annotations

import re
from typing import Final

_UNSEEN_RANGES: Final = (
    "\\x00-\\x1f\\x7f-\\x9f\\xad\\u034f\\u061c\\u115f\\u1160\\u17b4\\u17b5\\u180b-\\u180f\\u200b-\\u200f\\u2028-\\u202e"
    "\\u2060-\\u206f\\u3164\\ud800-\\udfff\\ufe00-\\ufe0f\\ufeff\\uffa0\\ufff0-\\ufffb"
    "\\u0600-\\u0605\\u06dd\\u070f\\u0890\\u0891\\u08e2\\U000110bd\\U000110cd\\U00013430-\\U0001343f"
    "\\U0001bca0-\\U0001bca3\\U0001d173-\\U0001d17a\\U000e0000-\\U000e0fff"
)
_UNSEEN = re.compile(f"[{_UNSEEN_RANGES}]")
_UNSEEN_IN_JSON = re.compile(f"(?![\\t\\r\\n])[{_UNSEEN_RANGES}]")
"""White space between tokens stays; in a string JSON does not allow it."""


def shown(text: str, max_chars: int | None = None) -> str:
    """Return ``text`` on one line, cut to ``max_chars``, what is not seen spelled as ``\\xNN`` or ``\\uNNNN``."""
    if max_chars is not None and len(text) > max_chars:
        text = text[: max_chars - 1] + "…"
    return _UNSEEN.sub(_escape, text)


def shown_json(line: str) -> str:
    """Return JSON text with the same value: only strings hold such characters, and JSON can spell them."""
    return _UNSEEN_IN_JSON.sub(_escape_json, line)


def _escape(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode("ascii")


def _escape_json(match: re.Match[str]) -> str:
    return "".join(f"\\u{unit:04x}" for unit in _units(match[0]))


def _units(character: str) -> list[int]:
    encoded = character.encode("utf-16-be", "surrogatepass")
    return [int.from_bytes(encoded[at : at + 2], "big") for at in range(0, len(encoded), 2)]
