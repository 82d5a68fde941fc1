"""Home paths and personal data in free text: the last parts of the redaction pipeline (AEP-0003 §9.4c and d).

Owns what is the home directory of a user (on Linux, the BSDs, Solaris, macOS, Windows and the bridges between
them), an e-mail address and a phone number. Texts are UTF-8 bytes, see ``secrets``.

Numbers are everywhere in the text of agents. A phone number is therefore only what is written like one, or
what a word like "phone" announces; dates, times, versions, addresses, identifiers and columns of numbers
stay.
"""

from __future__ import annotations

import re

from aep_relay.protocol.redaction.patterns import Pattern, replace
from aep_relay.protocol.redaction.secrets import PII

# --- home paths ---

_SLASH = rb"(?:\\*/|%2[Ff])"
_NAME = rb"[\w\x80-\xf4](?:[\w.@+\x80-\xf4-]*[\w\x80-\xf4-])?"
_REMOTE = rb"((?:file://(?:localhost)?|(?:ssh|sftp|scp|rsync|git\+ssh|ssh\+git|vscode-remote)://[^\s/]+)?)"
_BELOW_HOME = (
    rb"(?:" + _SLASH + rb"(?:var|usr|export|net|nfs|mnt|data))?" + _SLASH + rb"home" + _SLASH + _NAME
)
_BELOW_USERS = (
    rb"(?:" + _SLASH + rb"(?:mnt" + _SLASH + rb"[a-z]|cygdrive" + _SLASH + rb"[a-z]|[a-z]|"
    rb"System"
    + _SLASH
    + rb"Volumes"
    + _SLASH
    + rb"Data))?"
    + _SLASH
    + rb"Users"
    + _SLASH
    + rb"("
    + _NAME
    + rb")"
)
_ROOT = rb"(?:" + _SLASH + rb"private)?(?:" + _SLASH + rb"var)?" + _SLASH + rb"root([\w.@+\x80-\xf4-]*)"
_POSIX = _REMOTE + rb"(?:" + _BELOW_HOME + rb"|" + _BELOW_USERS + rb"|" + _ROOT + rb")"

_BACKSLASH = rb"(?:\\+|/+|%5[Cc]|%2[Ff])"
_WINDOWS_CHARACTER = rb"""[^\s\\/:*?"'`<>|,;()\[\]{}%$&=\xf7\xff]"""
_WINDOWS_WORD = rb"[\w\x80-\xf4]" + _WINDOWS_CHARACTER + rb"*"
# A name with spaces is told from the words behind a path by the separator that follows it.
_WINDOWS_NAME = (
    rb"("
    + _WINDOWS_WORD
    + rb"(?: "
    + _WINDOWS_WORD
    + rb"){1,3})("
    + _BACKSLASH
    + rb")|("
    + _WINDOWS_WORD
    + rb")"
)
_WINDOWS = (
    rb"(?i:\b[a-z](?::|%3a)" + _BACKSLASH + rb"(?:users|documents and settings)"
    rb"|\\\\+[\w.$-]+(?:\\+[\w.$-]+)?\\+(?:users|home))" + _BACKSLASH + rb"(?:" + _WINDOWS_NAME + rb")"
)
_SHARED = frozenset({b"shared", b"public", b"default", b"all users", b"default user"})
# The patterns of `re` in this module are only used on a bounded number of bytes, or matched at a given place.
# An absolute path starts behind these, whatever stands before them, and behind an escaped line break, a colour,
# or an option such as -I.
_BEFORE_PATH = b" \t\n\r\f\x0b\"'`=:,;([{<>|&!#@*+^" + bytes(range(0x80, 0xF5))
_BEFORE_OPTION = b" \t\n\r\f\x0b\"'"
_LETTERS = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_LONGEST_COLOUR_BYTES = 24
_SLASHES = b"/\\%"
_UNC_START = re.compile(rb"""\A\Z|[\s"'`(=]""")
_LONGEST_START_BYTES = 24

_POSIX_PATTERN = Pattern(_POSIX)
_WINDOWS_PATTERN = Pattern(_WINDOWS)
HOME_SIGN = _POSIX + rb"|" + _WINDOWS


def hide_homes(text: bytes) -> bytes:
    """Replace the home directory at the start of each absolute path by ``~``."""
    return replace(_POSIX_PATTERN, replace(_WINDOWS_PATTERN, text, _windows_home), _posix_home)


def _starts_path(text: bytes, position: int) -> bool:
    if position == 0:
        return True
    last = text[position - 1]
    if last in _BEFORE_PATH:
        return True
    if position == 1 or last not in _LETTERS:
        return False
    before = text[position - 2]
    if before == ord("\\"):
        return last in b"nrtbf"
    if before == ord("-"):
        return position == 2 or text[position - 3] in _BEFORE_OPTION
    return last == ord("m") and _ends_colour(text, position - 1)


def _ends_colour(text: bytes, end: int) -> bool:
    start = text.rfind(b"\x1b[", max(0, end + 1 - _LONGEST_COLOUR_BYTES), end)
    return start >= 0 and not text[start + 2 : end].strip(b"0123456789;")


def _posix_home(text: bytes, start: int, end: int) -> bytes | None:
    if not _starts_path(text, start):
        return None
    remote = b""
    if text[start] not in _SLASHES:
        until = _POSIX_PATTERN.groups(text, start)[1][1]
        remote, start = text[start:until], until
    parent, name = _last_part(text[start:end])
    if parent.endswith(b"home"):
        return remote + b"~"
    if parent.endswith(b"Users"):
        return None if name.lower() in _SHARED else remote + b"~"
    tail = name[len(b"root") :]
    # "/root." ends a sentence, "/rootfs" and "/root-cause" are something else.
    return None if tail.strip(b".") else remote + b"~" + tail


def _last_part(path: bytes) -> tuple[bytes, bytes]:
    """Return what is above the last name of ``path``, and the name."""
    head, slash, name = path.rpartition(b"/")
    if b"%" in name or not slash:
        # No name holds a "%": it spells a slash.
        head, name = path[: path.rindex(b"%")], path[path.rindex(b"%") + 3 :]
    return head.rstrip(b"\\"), name


def _windows_home(text: bytes, start: int, _end: int) -> bytes | None:
    if text.startswith(b"\\", start) and _UNC_START.search(text[max(0, start - 1) : start]) is None:
        return None
    _, spaced, separator, plain = _WINDOWS_PATTERN.groups(text, start)
    if spaced[0] < 0:
        name = text[plain[0] : plain[1]]
        return None if name.lower() in _SHARED else b"~" + name[len(name.rstrip(b".")) :]
    return (
        None if text[spaced[0] : spaced[1]].lower() in _SHARED else b"~" + text[separator[0] : separator[1]]
    )


# --- e-mail addresses ---

_LATIN = rb"[\xc3-\xc5][\x80-\xbf]"
_EMAIL_PATTERN = Pattern(
    rb"((?:\w|" + _LATIN + rb")(?:[\w.%+'-]|" + _LATIN + rb")*|\"[\w .+'-]{1,64}\")(?:@|%40)"
    rb"((?:[A-Za-z0-9\x80-\xf4-]+\.)+([A-Za-z]{2,}))"
)
EMAIL_SIGN = rb"[\w\"\x80-\xf4](?:@|%40)[A-Za-z0-9\x80-\xf4-]+\.[A-Za-z0-9\x80-\xf4]"
# left-pad@1.3.0.tgz, icon@2x.png
_VERSION = re.compile(rb"v?[0-9]+\.[0-9]|[0-9]x\.")
_UNIT_TYPES = frozenset({b"service", b"socket", b"timer", b"mount", b"slice", b"scope", b"target", b"device"})


def hide_emails(text: bytes) -> bytes:
    """Replace e-mail addresses by ``PII``."""
    return replace(_EMAIL_PATTERN, text, _email)


def _email(text: bytes, start: int, end: int) -> bytes | None:
    # Neither sign stands in a domain.
    at = max(text.rfind(b"@", start, end), text.rfind(b"%40", start, end))
    # git@host is the name of a service, not of a person; unit@instance.service is none at all.
    if at - start == len(b"git") and text.startswith(b"git", start):
        return None
    if text[text.rindex(b".", at, end) + 1 : end].lower() in _UNIT_TYPES:
        return None
    domain = at + (1 if text.startswith(b"@", at) else len(b"%40"))
    return None if _VERSION.match(text, domain, end) is not None else PII


# --- phone numbers ---

_GAP = rb"(?:[ ./-]|\xc2\xa0|\xe2\x80[\x90-\x93\xaf])"
_HYPHEN = rb"(?:[.-]|\xe2\x80[\x90-\x93])"
_DIGITS = rb"\(?[0-9]+\)?(?:" + _GAP + rb"{0,3}\(?[0-9]+\)?)*"
_ANNOUNCED = (
    rb"(?i:phone|mobile|whatsapp|\b(?:tel|telefon|handy|cell|fax|sms)\b)(?i:[ _-]?(?:numbers?|num|no|nr)\b)?"
    rb"(?i: (?:is|at|on|to))?[^0-9A-Za-z+(\r\n\xf7\xff]{0,8}(\+?" + _DIGITS + rb")"
)
_CALL = rb"(?i:\b(?:call|dial|ring|text|reach|contact)\b)[A-Za-z ,:']{0,24}([2-9][0-9]{2} [0-9]{3} [0-9]{4})"
# Where a number may start: at the start of a word, also of one behind an escaped line break.
_START = rb"(?:\b|\\[nrt])"
_NORTH_AMERICAN = (
    rb"(?:(?:\+|" + _START + rb")1" + _GAP + rb")?"
    rb"(?:\([2-9][0-9]{2}\)" + _GAP + rb"?|" + _START + rb"[2-9][0-9]{2}" + _HYPHEN + rb")"
    rb"[0-9]{3}(?:" + _HYPHEN + rb"| )[0-9]{4}(?: ?(?i:x|ext\.?) ?[0-9]{1,5})?"
)
_TOLL_FREE = _START + rb"1" + _GAP + rb"8[0-9]{2}" + _GAP + rb"[0-9]{3}" + _GAP + rb"[0-9]{4}"
_NATIONAL = (
    _START + rb"0[1-9](?:[ .-][0-9]{2}){4}"
    rb"|(?:\(|" + _START + rb")0[1-9][0-9]{1,3}\)?(?:[ /-]{1,3}[0-9]{2,8}){1,3}"
    rb"|" + _START + rb"00[1-9][0-9]{0,2}[ -][0-9]{2,4}[ -]?[0-9]{5,8}"
)
_WRITTEN = rb"|".join((_NORTH_AMERICAN, _TOLL_FREE, _NATIONAL))
_PHONE = _ANNOUNCED + rb"|" + _CALL + rb"|(\+[1-9]" + _DIGITS + rb")|(" + _WRITTEN + rb")"
_PHONE_PATTERN = Pattern(_PHONE)
PHONE_SIGN = _PHONE
# Not behind a marker either: what stood there may have been a digit.
_BEFORE_NUMBER = re.compile(rb"(?:\A|[^\w.+/#@%$~\\\xf7-]|\\[nrt])\Z")
_AFTER_NUMBER = re.compile(rb"\Z|[^\w./@-]|[./@-](?:\W|\Z)")
_NO_PHONE = re.compile(
    rb"(?:19|20)[0-9]{2}[./-][01]?[0-9][./-][0-3]?[0-9].*|[0-3]?[0-9][./-][01]?[0-9][./-](?:19|20)[0-9]{2}.*"
    rb"|[0-9]{1,3}(?:\.[0-9]{1,3}){3}"
)
_MOST_DIGITS_TOGETHER = 15
_TOO_LONG = re.compile(rb"[0-9]{%d}" % (_MOST_DIGITS_TOGETHER + 1))
_NUMBER_START = re.compile(rb"[0-9+(]")
_NO_DIGITS = bytes(set(range(256)) - set(b"0123456789"))
_FEWEST_ANNOUNCED_DIGITS = 7
_FEWEST_INTERNATIONAL_DIGITS = 8
_FEWEST_DIGITS = 9


def hide_phones(text: bytes) -> bytes:
    """Replace phone numbers by ``PII``: in international or national notation, or announced by a word."""
    return replace(_PHONE_PATTERN, text, _phone)


def _phone(text: bytes, start: int, end: int) -> bytes | None:
    first = text[start : start + 1]
    is_announced = first.isalpha()
    number_start = start
    fewest = _FEWEST_DIGITS
    if is_announced:
        # No word before the number holds a digit or what else a number may start with.
        announced = _NUMBER_START.search(text, start, end)
        number_start = start if announced is None else announced.start()
        fewest = _FEWEST_ANNOUNCED_DIGITS
    elif first == b"\\":
        number_start += len(b"\\n")
    elif first == b"+" and text[start + 2] in b"0123456789(":
        fewest = _FEWEST_INTERNATIONAL_DIGITS
    number = text[number_start:end]
    digits = len(number.translate(None, _NO_DIGITS))
    if digits < fewest or (digits > _MOST_DIGITS_TOGETHER and _TOO_LONG.search(number) is not None):
        return None
    if _AFTER_NUMBER.match(text, end) is None or _NO_PHONE.fullmatch(number) is not None:
        return None
    before = text[max(0, number_start - 2) : number_start]
    if not is_announced and _BEFORE_NUMBER.search(before) is None:
        return None
    return text[start:number_start] + PII
