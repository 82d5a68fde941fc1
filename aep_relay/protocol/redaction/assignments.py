"""Assignments of secrets: ``password=…`` and its relatives in the redaction pipeline (AEP-0003 §9.4a and b).

Owns which keys are secret, the signs that may stand behind them, and where a value ends. A quoted value
goes up to its closing quote, a JSON array or object up to its bracket; a bare value goes up to white space,
or to what is plainly the next member of a list, a query or a header. A quote or a bracket that is never
closed hides rather too much. Linear: what is read in search of an end is consumed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from aep_relay.protocol.redaction.patterns import Pattern
from aep_relay.protocol.redaction.secrets import QUOTE, SECRET, SPACE

_KEYWORD = (
    rb"(?i:pass(?:word|wd|phrase|code)|secret(?:_id)?|token|api[ _-]?key|credential"
    rb"|(?:access|account|auth|private|encryption|signing|master|client)[_-]?key"
    rb"|[;?&]" + SPACE + rb"*pwd)|[A-Z]_(?:PASS|PWD)"
)
_SUFFIX = (
    rb"(?i:[_-]?(?:access[_-]?key|key(?:[_-]?base)?|hash|value|base64|b64)|[_-]?confirmation|[0-9]{1,3})?"
)
_KEY_END = rb"(?:" + QUOTE + rb"|[*_]{1,3}|\]|%5[Dd]){0,4}"
_EQUALS = rb"(?:[=:]|%3[AaDd]|\\+u003[AaDd]|\xef\xbc[\x9a\x9d])"
_SIGN = (
    SPACE + rb"*" + _EQUALS + rb"(?:" + SPACE + rb"*[=:>])*"
    rb"(?:" + SPACE + rb"*[*_]{1,3}" + SPACE + rb")?" + SPACE + rb"*"
)
# {"name": "token", "value": "…"}
_NAMED = QUOTE + rb"?" + SPACE + rb"*,?" + SPACE + rb"*" + QUOTE + rb"?(?i:value)" + QUOTE + rb"?" + _SIGN
_SCHEME = rb"(?i:bearer|basic|token|digest|negotiate|apikey|bot)"
_AUTHORIZATION = (
    rb"(?i:authorization)"
    + QUOTE
    + rb"?(?:"
    + _SIGN
    + rb"|"
    + SPACE
    + rb"*,"
    + SPACE
    + rb"*)"
    + QUOTE
    + rb"?"
    + _SCHEME
    + rb"(?:"
    + SPACE
    + rb"|%20|\+)+"
)
# Behind an option white space is enough, and a comma between the elements of an argument list.
_OPTION_END = rb"(?:(?:" + QUOTE + rb",)?" + SPACE + rb"+|" + QUOTE + rb"," + SPACE + rb"*)"

# The patterns of `re` here are only matched at a given place. They read a bounded number of bytes, or a run
# of one kind that is then consumed, and are several times cheaper for that than RE2.
_OPENING = re.compile(rb"[bBfFlLrRuU@$]{0,2}(" + QUOTE + rb")")
# Each starts with a whole run of backslashes, whatever stands behind it, so that no run is read twice.
_CLOSING = {
    **{mark: re.compile(rb"(\\*+)" + mark + rb"|\\++|[\r\n]") for mark in (b'"', b"'", b"`")},
    **{mark: re.compile(rb"(\\*+)" + mark + rb"|\\++") for mark in (b'"""', b"'''")},
    **{
        mark: re.compile(rb"()" + mark + rb"|[\r\n]")
        for mark in (b"&quot;", b"&apos;", b"&#34;", b"&#39;", b"%22", b"%27")
    },
    **{mark: re.compile(rb"()\xe2\x80[\x98\x99]|[\r\n]") for mark in (b"\xe2\x80\x98", b"\xe2\x80\x99")},
    **{mark: re.compile(rb"()\xe2\x80[\x9c\x9d]|[\r\n]") for mark in (b"\xe2\x80\x9c", b"\xe2\x80\x9d")},
}
_WORD = re.compile(rb"\w")
_ORDINARY = re.compile(rb"""[^\s"'`&,;\\%)\]}><]+""")
_NEXT_KEY = SPACE + rb"*" + QUOTE + rb"?[\w.\[\]-]{1,64}" + QUOTE + rb"?" + SPACE + rb"{0,8}" + _EQUALS
# Most values, told in one step: a word that announces nothing, and behind it neither a sign nor what could go on.
_PLAIN_END = rb"(?:[\r\n]|\Z|[ \t]++[^\s=]|[,;]\s|[&,;][\w.-]{1,64}+[=:])"
_PLAIN_VALUE = re.compile(
    rb"(?!(?i:[bflru@$]{0,2}\xe2\x80|bearer|basic|token)|[!\xff])([^\s\"'`&,;\\%)\]}><|\[{]++)(?="
    + _PLAIN_END
    + rb")"
    rb"|\"([^\"\\\r\n]++)\"(?!\w|[\])}>]{0,8}+[ \t]*+=)"
    rb"|'([^'\\\r\n]++)'(?!\w|[\])}>]{0,8}+[ \t]*+=)"
)
_BLANKS = b" \t\n\r\f\x0b"
_SPECIAL = re.compile(rb"\\+|.", re.DOTALL)
_BARE_STOP = re.compile(
    rb"\s"
    rb"|(?:[&,;]|\\+u0026|%26|\\+[nrt])" + _NEXT_KEY + rb"|\\*[\"'`](?:[\s,;:)\]}>|&+]|\Z)"
    rb"|[,;)\]}>\"'`]{1,8}(?:\s|\Z)|[)\]}]{1,8}(?:[,;]|\\{0,8}[\"'`])"
    rb"|</?[A-Za-z][\w:.-]{0,40}\s?/?>"
)
_BRACKET_OR_QUOTE = re.compile(rb'(\\*+)"|\\++|[\[\]{}]')
_SPACES = re.compile(SPACE + rb"*")
_FURTHER_SIGN = re.compile(rb"[\])}>]{0,8}[ \t]*=[ \t]*")
# A value that only announces the value: an authentication scheme, the mark of a YAML block, a YAML tag.
_ANY_SIGN = re.compile(_EQUALS)
_ANNOUNCEMENT = re.compile(rb"(?i:bearer|basic|token)|[|>][0-9+-]{0,2}|!\S*")
_MOST_ANNOUNCEMENTS = 2
# "--token" is followed by its value on a command line, and by these in prose.
_PROSE_AFTER_OPTION = frozenset(
    b"and are argument arguments as by can flag flags for from has if in is must not of on option options or"
    b" parameter should switch that the to was when which will with".split()
)


def assignment_pattern(names: Sequence[str] = ()) -> bytes:
    """Return the pattern of a secret key and its sign, up to where the value starts.

    ``names`` are further keys whose values are secret (AEP-0003 §9.4b), in any case and from a word's start.
    """
    keys = _keys(names)
    return (
        rb"--[\w-]*" + keys + _KEY_END + rb"(?:" + _SIGN + rb"|" + _OPTION_END + rb")"
        rb"|" + keys + _KEY_END + rb"(?:" + _SIGN + rb"|" + _NAMED + rb")"
        rb"|" + _AUTHORIZATION
    )


def element_pattern(names: Sequence[str] = ()) -> bytes:
    """Return the pattern of an XML element with a secret name, up to its end tag or to where the text is cut off.

    Group 1 is the start tag. In prose, "<token> is" is a placeholder.
    """
    tag = rb"(<[\w:.-]*" + _keys(names) + rb"(?:\s[^<>]*)?>(?:<!\[CDATA\[)?)"
    return tag + rb"(?:[^<]*[^<\s][^<]*</|[^<\s][^<]*\z)"


def _keys(names: Sequence[str]) -> bytes:
    return rb"(?:(?:" + _KEYWORD + rb")" + _SUFFIX + rb"".join(map(_listed, names)) + rb")"


def _listed(name: str) -> bytes:
    encoded = name.encode("utf-8", "surrogatepass")
    literal = b"".join(b"\\x%02x" % byte for byte in encoded)
    return (rb"|\b" if encoded[:1].isalnum() else rb"|") + rb"(?i:" + literal + rb")"


def hide_elements(text: bytes, pattern: Pattern) -> bytes:
    """Replace the content of each match of ``pattern`` (an ``element_pattern``)."""
    pieces: list[bytes] = []
    done = 0
    while True:
        (start, end), tag = pattern.groups(text, done)
        if start < 0:
            break
        pieces += (text[done : tag[1]], SECRET, b"</" if text.endswith(b"</", start, end) else b"")
        done = end
    if not pieces:
        return text
    pieces.append(text[done:])
    return b"".join(pieces)


def hide_assignments(text: bytes, pattern: Pattern) -> bytes:
    """Replace the value behind each match of ``pattern`` (an ``assignment_pattern``), and nothing else."""
    pieces: list[bytes] = []
    done = position = 0
    find = pattern.find
    while True:
        start, position = find(text, position)
        if start < 0:
            break
        if text[position - 1] in _BLANKS and _has_no_value(text, start, position, pattern):
            continue
        is_option = text.startswith(b"--", start) and _ANY_SIGN.search(text, start, position) is None
        if is_option and text.startswith(b"-", position):
            # Another option: none of it is read that is still to be searched.
            continue
        plain = _PLAIN_VALUE.match(text, position)
        if plain is not None:
            value_start, end = plain.span(plain.lastindex or 0)
            if not is_option or not _is_prose(text[value_start:end]):
                pieces += (text[done:value_start], SECRET)
                done = end
                position = plain.end()
            continue
        for value_start, end, behind in _values(text, position, is_option=is_option):
            position = behind
            if end > value_start:
                pieces += (text[done:value_start], SECRET)
                done = end
    if not pieces:
        return text
    pieces.append(text[done:])
    return b"".join(pieces)


def _has_no_value(text: bytes, start: int, end: int, pattern: Pattern) -> bool:
    """Whether the line ends behind the sign and the next one is an assignment of its own, whose key is no value."""
    sign = text[start:end]
    behind = sign[len(sign.rstrip()) :]
    if b"\n" not in behind and b"\r" not in behind:
        return False
    return pattern.is_at(text, end)


def _values(text: bytes, position: int, *, is_option: bool) -> list[tuple[int, int, int]]:
    """Return start and end of each value at ``position``, behind a key and its sign, and where the text goes on
    behind it."""
    first = _value(text, position)
    if is_option and _is_prose(text[first[0] : first[1]]):
        return []
    values = [first]
    # `token: str = "…"`: what stands behind the colon is only the type.
    while values[-1][1] > values[-1][0] and (sign := _FURTHER_SIGN.match(text, values[-1][2])) is not None:
        values.append(_value(text, sign.end()))
    return values


def _is_prose(value: bytes) -> bool:
    """Whether ``value``, behind an option without a sign, is only the next word of a sentence."""
    return value.startswith(b"-") or value.lower().rstrip(b".:") in _PROSE_AFTER_OPTION


def _value(text: bytes, position: int) -> tuple[int, int, int]:
    """Return start and end of the value at ``position``, and where the text goes on behind it."""
    start, end, behind = _single_value(text, position)
    if start > position:
        return start, end, behind
    for _ in range(_MOST_ANNOUNCEMENTS):
        if _ANNOUNCEMENT.fullmatch(text, start, end) is None:
            break
        spaces = _SPACES.match(text, behind)
        start, end, behind = _single_value(text, behind if spaces is None else spaces.end())
        behind = _bare_end(text, behind)
    return position, behind, behind


def _single_value(text: bytes, position: int) -> tuple[int, int, int]:
    opening = _OPENING.match(text, position)
    if opening is not None:
        return _quoted(text, opening)
    is_block = text[position : position + 1] in (b"[", b"{")
    end = _bare_end(text, _block_end(text, position) if is_block else position)
    return position, end, end


def _quoted(text: bytes, opening: re.Match[bytes]) -> tuple[int, int, int]:
    quote = opening[1]
    mark = quote.lstrip(b"\\")
    depth = len(quote) - len(mark)
    start = position = opening.end()
    closing = _CLOSING[mark]
    for match in closing.finditer(text, position):
        position = match.end()
        if match.start(1) < 0:
            if text.startswith(b"\\", match.start()):
                continue
            return start, match.start(), match.start()
        escapes = match.end(1) - match.start(1)
        if _is_escaped(escapes, depth):
            continue
        end = match.start() if depth else match.end(1)
        # A shell joins "abc"def to one word.
        if _WORD.match(text, position) is not None:
            end = _bare_end(text, position)
            return opening.start(), end, end
        return start, end, position
    return start, len(text), len(text)


def _is_escaped(escapes: int, depth: int) -> bool:
    """Whether a quote behind ``escapes`` backslashes is inside a string whose own quotes have ``depth``."""
    return escapes > depth if depth else escapes % 2 == 1


def _bare_end(text: bytes, position: int) -> int:
    # The password in a URL has been hidden already; its host is none of it.
    if text.startswith(SECRET + b"@", position):
        return position + 1
    while True:
        ordinary = _ORDINARY.match(text, position)
        if ordinary is not None:
            position = ordinary.end()
        if position == len(text) or _BARE_STOP.match(text, position) is not None:
            return position
        special = _SPECIAL.match(text, position)
        position = position + 1 if special is None else special.end()


def _block_end(text: bytes, position: int) -> int:
    depth = 0
    string_depth: int | None = None
    in_string = False
    for match in _BRACKET_OR_QUOTE.finditer(text, position):
        if match.start(1) >= 0:
            escapes = match.end(1) - match.start(1)
            if string_depth is None:
                string_depth = escapes
            if not _is_escaped(escapes, string_depth):
                in_string = not in_string
        elif not in_string and text[match.start()] in b"[]{}":
            depth += 1 if text[match.start()] in b"[{" else -1
            if depth == 0:
                return match.end()
    return len(text)
