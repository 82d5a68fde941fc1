"""Home paths and personal data in free text: the last parts of the redaction pipeline (AEP-0003 §9.4c and d).

Owns what is the home directory of a user (on Linux, the BSDs, Solaris, macOS, Windows and the bridges between
them), an e-mail address and a phone number. Texts are UTF-8 bytes, see ``secrets``.

Numbers are everywhere in the text of agents. A phone number is therefore only what is written like one, or
what a word like "phone" announces; dates, times, versions, addresses, identifiers and columns of numbers
stay.
"""

from __future__ import annotations

import re

from aep_relay.protocol.redaction.patterns import Match, compile_pattern, replace
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
# An absolute path starts here: behind an escaped line break, a colour, or an option such as -I, too.
_PATH_START = re.compile(
    rb"""(?:\A|[\s\x0b"'`=:,;(\[{<>|&!#@*+^]|\\[nrtbf]|\x1b\[[0-9;]*m|(?:\A|[\s"'])-[A-Za-z]|[\x80-\xf4])\Z"""
)
_UNC_START = re.compile(rb"""\A\Z|[\s"'`(=]""")
_LONGEST_START_BYTES = 24

_POSIX_PATTERN = compile_pattern(_POSIX)
_WINDOWS_PATTERN = compile_pattern(_WINDOWS)
HOME_SIGN = _POSIX + rb"|" + _WINDOWS


def hide_homes(text: bytes) -> bytes:
    """Replace the home directory at the start of each absolute path by ``~``."""
    return replace(_POSIX_PATTERN, replace(_WINDOWS_PATTERN, text, _windows_home), _posix_home)


def _starts_path(text: bytes, position: int) -> bool:
    start = max(0, position - _LONGEST_START_BYTES)
    return _PATH_START.search(text[start:position]) is not None


def _posix_home(text: bytes, match: Match) -> bytes | None:
    if not _starts_path(text, match.start()) or (match.group(2) or b"").lower() in _SHARED:
        return None
    tail = match.group(3) or b""
    # "/root." ends a sentence, "/rootfs" and "/root-cause" are something else.
    if tail.strip(b"."):
        return None
    return (match.group(1) or b"") + b"~" + tail


def _windows_home(text: bytes, match: Match) -> bytes | None:
    spaced, separator, plain = match.group(1), match.group(2) or b"", match.group(3) or b""
    if (spaced or plain).lower() in _SHARED:
        return None
    is_unc = text.startswith(b"\\", match.start())
    if is_unc and _UNC_START.search(text[max(0, match.start() - 1) : match.start()]) is None:
        return None
    return b"~" + separator + plain[len(plain.rstrip(b".")) :]


# --- e-mail addresses ---

_LATIN = rb"[\xc3-\xc5][\x80-\xbf]"
_EMAIL_PATTERN = compile_pattern(
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


def _email(_text: bytes, match: Match) -> bytes | None:
    local, domain, top = match.group(1) or b"", match.group(2) or b"", (match.group(3) or b"").lower()
    # git@host is the name of a service, not of a person; unit@instance.service is none at all.
    if local == b"git" or top in _UNIT_TYPES or _VERSION.match(domain) is not None:
        return None
    return PII


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
_PHONE_PATTERN = compile_pattern(_PHONE)
PHONE_SIGN = _PHONE
# Not behind a marker either: what stood there may have been a digit.
_BEFORE_NUMBER = re.compile(rb"(?:\A|[^\w.+/#@%$~\\\xf7-]|\\[nrt])\Z")
_AFTER_NUMBER = re.compile(rb"\Z|[^\w./@-]|[./@-](?:\W|\Z)")
_NO_PHONE = re.compile(
    rb"(?:19|20)[0-9]{2}[./-][01]?[0-9][./-][0-3]?[0-9].*|[0-3]?[0-9][./-][01]?[0-9][./-](?:19|20)[0-9]{2}.*"
    rb"|[0-9]{1,3}(?:\.[0-9]{1,3}){3}"
)
_TOO_LONG = re.compile(rb"[0-9]{16}")
_FEWEST_DIGITS = (0, 7, 10, 8, 9)
"""By the group of ``_PHONE`` that matched."""


def hide_phones(text: bytes) -> bytes:
    """Replace phone numbers by ``PII``: in international or national notation, or announced by a word."""
    return replace(_PHONE_PATTERN, text, _phone)


def _phone(text: bytes, match: Match) -> bytes | None:
    group = next(index for index in (1, 2, 3, 4) if match.start(index) >= 0)
    number = match.group(group) or b""
    start = match.start(group)
    if number.startswith(b"\\"):
        number, start = number[2:], start + 2
    if _AFTER_NUMBER.match(text, match.end()) is None or _NO_PHONE.fullmatch(number) is not None:
        return None
    if group > 2 and _BEFORE_NUMBER.search(text[max(0, start - 2) : start]) is None:
        return None
    digits = sum(byte in b"0123456789" for byte in number)
    if digits < _FEWEST_DIGITS[group] or _TOO_LONG.search(number) is not None:
        return None
    return text[match.start() : start] + PII
