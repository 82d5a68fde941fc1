"""The members of a JSON object, each as its text, whatever that holds: any depth, any number, lone surrogates.

What is to be ignored has to be JSON and nothing more, so the limits of ``jsontext`` and of msgspec do not apply here.
Invariants: the verdict is that of RFC 8259's grammar, for valid UTF-8; nothing recurses; what a text may cost is
bounded by ``MAX_STEPS``, ``MAX_SKIMMED_MEMBERS`` and ``MAX_COMMAS``, since the scalars of one container, its runs of
opening brackets and of closing ones are each a single match of a regular expression.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final

from aep_relay.protocol.jsontext import WHITESPACE, JsonError

if TYPE_CHECKING:
    Member = tuple[str, bytes]

MAX_STEPS: Final = 5_000
"""Containers that hold containers, roughly: some milliseconds' worth."""

MAX_SKIMMED_MEMBERS: Final = 2_000
"""Members of the object itself."""

MAX_COMMAS: Final = 1 << 17
"""Members and items in all of the text."""

_S = rb"[ \t\r\n]*+"
_STRING = rb'"(?:[^"\\\x00-\x1f]++|\\(?:["\\/bfnrt]|u[0-9A-Fa-f]{4}))*+"'
_NUMBER = rb"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?"
_SCALAR = rb"(?:" + _STRING + rb"|" + _NUMBER + rb"|true|false|null)"
_MEMBER = re.compile(_S + rb"(" + _STRING + rb")" + _S + rb":" + _S + rb"(" + _SCALAR + rb")" + _S + rb",")
# Neither possessive nor without end: until 3.11.4 Python goes on behind what a possessive group took of an item that is
# none in the end, and a greedy one remembers each.
_MEMBERS = re.compile(rb"(?:" + _S + _STRING + _S + rb":" + _S + _SCALAR + _S + rb",){1,256}")
_ITEMS = re.compile(rb"(?:" + _S + _SCALAR + _S + rb",){1,256}")
_NAME = re.compile(_S + rb"(" + _STRING + rb")" + _S + rb":" + _S)
_VALUE = re.compile(_S + rb"(?:(" + _SCALAR + rb")|(\[[\[ \t\r\n]*+)|\{)")
_CLOSING = re.compile(rb"[\]} \t\r\n]*+")
_START = re.compile(_S + rb"\{")
_CLOSED_BY = bytes.maketrans(b"[{", b"]}")


class TooIntricate(JsonError):
    """The text takes more than the bounds of this module: whether it is JSON was not found out."""


def skim(text: bytes) -> list[Member]:
    """Return name and text of each member of the JSON object ``text``, valid UTF-8, in order, doubled ones too.

    Raises :class:`TooIntricate`, and :class:`JsonError` if it is no JSON object.
    """
    start = _START.match(text)
    if start is None:
        raise JsonError("not a JSON object")
    if text.count(b",") > MAX_COMMAS:
        raise TooIntricate(f"more than {MAX_COMMAS} commas")
    return _Skimmer(text, start.end()).run()


class _Skimmer:
    __slots__ = ("_at", "_fresh", "_members", "_name", "_open", "_text", "_value_at")

    def __init__(self, text: bytes, at: int) -> None:
        self._text = text
        self._at = at
        self._open = bytearray(b"{")
        self._fresh = True
        """Whether nothing of the innermost container has come yet, so that it may end here."""
        self._members: list[Member] = []
        self._name = ""
        self._value_at = 0

    def run(self) -> list[Member]:
        """Read up to the end of the text, one value that is no mere scalar in the midst of others at a time."""
        for _ in range(MAX_STEPS):
            if not self._value():
                continue
            self._close()
            if not self._open:
                if self._at != len(self._text):
                    raise JsonError("not JSON: something follows the object")
                return self._members
            if self._text[self._at : self._at + 1] != b",":
                raise _malformed(self._at)
            self._at += 1
            self._fresh = False
        raise TooIntricate(f"more than {MAX_STEPS} steps")

    def _value(self) -> bool:
        """Read on to behind a value that closing brackets or a comma have to follow; False if one was opened."""
        text, opened = self._text, self._open
        named = opened[-1] == ord("{")
        self._skip(_MEMBERS if named else _ITEMS, is_top=len(opened) == 1)
        if named:
            name = _NAME.match(text, self._at)
            if name is None:
                if not self._fresh:
                    raise _malformed(self._at)
                return True
            self._at = name.end()
            self._fresh = False
            if len(opened) == 1:
                self._name, self._value_at = _read(name[1]), self._at
        value = _VALUE.match(text, self._at)
        if value is None:
            if named or not self._fresh:
                raise _malformed(self._at)
            return True
        self._at = value.end()
        self._fresh = value[1] is None
        if value[1] is not None:
            if len(opened) == 1:
                self._add(self._name, value[1])
            return True
        opened += b"{" if value[2] is None else b"[" * value[2].count(b"[")
        return False

    def _skip(self, run: re.Pattern[bytes], *, is_top: bool) -> None:
        """Pass over scalars with a comma behind them."""
        while (passed := run.match(self._text, self._at)) is not None:
            if is_top:
                for member in _MEMBER.finditer(self._text, self._at, passed.end()):
                    self._add(_read(member[1]), member[2])
            self._at = passed.end()
            self._fresh = False

    def _close(self) -> None:
        """Pass over closing brackets, which must be there if the innermost container is empty."""
        match = _CLOSING.match(self._text, self._at)
        run = b"" if match is None else match[0].translate(None, WHITESPACE)
        opened = self._open
        if match is None or len(run) > len(opened) or (self._fresh and not run):
            raise _malformed(self._at)
        if run:
            if opened[-len(run) :][::-1].translate(_CLOSED_BY) != run:
                raise _malformed(self._at)
            was_nested = len(opened) > 1
            del opened[-len(run) :]
            if was_nested and len(opened) <= 1:
                value = self._text[self._value_at : match.end()].rstrip(WHITESPACE)
                self._add(self._name, value if opened else value[:-1].rstrip(WHITESPACE))
        self._at = match.end()

    def _add(self, name: str, value: bytes) -> None:
        if len(self._members) >= MAX_SKIMMED_MEMBERS:
            raise TooIntricate(f"more than {MAX_SKIMMED_MEMBERS} members")
        self._members.append((name, value))


def _read(name: bytes) -> str:
    # Lone surrogates may stand in a name, which is then nobody's.
    return name[1:-1].decode() if b"\\" not in name else str(json.loads(name.decode()))


def _malformed(at: int) -> JsonError:
    return JsonError(f"not JSON: malformed at byte {at}")
