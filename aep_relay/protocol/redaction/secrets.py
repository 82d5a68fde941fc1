"""Secrets that are known by their shape: the first part of the redaction pipeline (AEP-0003 §9.4a).

Owns PEM blocks, tokens with a known prefix, JWTs, passwords in URLs and ``Bearer`` tokens. Texts are UTF-8
bytes in which earlier redactions stand as one byte each, ``SECRET`` or ``PII``, so that no pattern can
match into a marker. Every function returns its text with secrets replaced by ``SECRET``.

The specified patterns are a floor: where the end of a secret is in doubt, rather too much is hidden.
"""

from __future__ import annotations

import re

from aep_relay.protocol.redaction.patterns import Pattern, replace, replace_by

SECRET = b"\xff"
"""Stands for ``[REDACTED:secret]``. No UTF-8 text holds this byte, and it has no other case."""
PII = b"\xf7"
"""Stands for ``[REDACTED:pii]``; chosen like ``SECRET``."""

SPACE = rb"(?:[\s\x0b]|\xc2\xa0)"
"""White space, the no-break space included."""
QUOTE = rb"""(?:\\*(?:\"{3}|'{3}|["'`])|&quot;|&apos;|&#3[49];|%2[27]|\xe2\x80[\x98\x99\x9c\x9d])"""
"""A quotation mark: plain, tripled, escaped for a string, for HTML or for a URL, typographic."""

_PEM_FIRST_LINE = rb"(?:-----BEGIN [^\r\n-]{1,64}-----|---- BEGIN SSH2 [A-Z ]{1,40} ----)"
_PEM_LAST_LINE = rb"(?:-----END [^\r\n-]{1,64}-----|---- END SSH2 [A-Z ]{1,40} ----)"
# A block that is cut off has no end to look for: everything behind its first line goes.
_PEM_BLOCK = rb"(?s:" + _PEM_FIRST_LINE + rb".*?(?:" + _PEM_LAST_LINE + rb"|\z))"
# What is left of a block whose first line was cut off: lines of nothing but base64. Only behind long pieces
# may other white space stand for the end of a line, or the words before the block would go too.
_PEM_REST = (
    rb"(?:[A-Za-z0-9+/=]+[ \t]*(?:\r?\n|(?:\\+[rn])+)[ \t>|+]*|[A-Za-z0-9+/=]{40,}[ \t]+)+[A-Za-z0-9+/=]*"
    + _PEM_LAST_LINE
)
_AWS_KEY_ID = rb"A(?:KIA|SIA)[0-9A-Z]{16,}"
_TOKEN = (
    rb"\bgh[oprsu]_[A-Za-z0-9]{20,}|\bgithub_pat_\w{20,}|\bglpat-[\w-]{20,}"
    rb"|\bsk-(?:[A-Za-z0-9]{1,16}-){0,3}\w{20,}|\b[rs]k_(?:live|test)_\w{10,}"
    rb"|\bxox[abeoprs]-[\w-]{10,}|\bAIza[\w-]{35,}|\bnpm_[A-Za-z0-9]{30,}|\bhf_[A-Za-z0-9]{30,}"
)
_JWT = rb"eyJ[\w-]{5,}\.{1,2}[\w-]{4,}(?:\.[\w-]+){0,3}"
_USER_INFO = rb"""://[^\s/:"'<>]*:([^\s/"'<>]+)@"""
_BEARER = rb"(?i:\bbearer)(?:" + SPACE + rb"+|%20)" + QUOTE + rb"?([\w~+/.-][^\s\"'`<>,;(){}\[\]\\]*)"
# What follows the word in prose: words, joined ones too, names of the scheme, small numbers.
# Of `re`, since it only reads a word of a bounded length.
_PROSE = re.compile(
    rb"(?:(?:[a-z]+|[A-Z][a-z]*|[A-Z]+s?)(?:[/'-][A-Za-z]+)*|(?i:oauth2?|rfc[0-9]{0,4}|v[0-9.]+)|[0-9.]{1,5})?\W*"
)
_LONGEST_WORD_BYTES = 32
# What stands before a `Bearer` token, of `re` since it is only matched at a given place.
_BEFORE_TOKEN = re.compile(rb"(?i:bearer)(?:" + SPACE + rb"+|%20)" + QUOTE + rb"?")

# Compiled one by one, since each may read on without a match: see the module ``patterns``.
_PEM_BLOCK_PATTERN = Pattern(_PEM_BLOCK)
_PEM_REST_PATTERN = Pattern(_PEM_REST)
_AWS_KEY_ID_PATTERN = Pattern(_AWS_KEY_ID)
_TOKEN_PATTERN = Pattern(_TOKEN)
_JWT_PATTERN = Pattern(_JWT)
_USER_INFO_PATTERN = Pattern(_USER_INFO)
_BEARER_PATTERN = Pattern(_BEARER)

PEM_SIGN = rb"-----BEGIN |---- BEGIN SSH2 |-----END |---- END SSH2 "
TOKEN_SIGN = _AWS_KEY_ID + rb"|" + _JWT + rb"|" + _TOKEN
AUTHORIZATION_SIGN = _USER_INFO + rb"|" + _BEARER


def hide_pem(text: bytes) -> bytes:
    """Replace PEM blocks of every kind: whole, without an end, and the rest of those without a start."""
    return replace_by(_PEM_REST_PATTERN, replace_by(_PEM_BLOCK_PATTERN, text, SECRET), SECRET)


def hide_tokens(text: bytes) -> bytes:
    """Replace AWS access key ids, JWTs, and other tokens known by the word that they start with."""
    for pattern in (_AWS_KEY_ID_PATTERN, _JWT_PATTERN, _TOKEN_PATTERN):
        text = replace_by(pattern, text, SECRET)
    return text


def hide_authorization(text: bytes) -> bytes:
    """Replace passwords in URLs and ``Bearer`` tokens, but not the word in prose."""
    return _hide_bearers(replace(_USER_INFO_PATTERN, text, _user_info))


def _user_info(text: bytes, start: int, _end: int) -> bytes:
    # "://", a name without a colon, a colon, the password
    return text[start : text.index(b":", start + 3) + 1] + SECRET + b"@"


def _hide_bearers(text: bytes) -> bytes:
    pieces: list[bytes] = []
    done = position = 0
    find = _BEARER_PATTERN.find
    while True:
        start, end = find(text, position)
        if start < 0:
            break
        before = _BEFORE_TOKEN.match(text, start)
        token_start = start if before is None else before.end()
        token = text[token_start:end]
        if len(token) <= _LONGEST_WORD_BYTES and _PROSE.fullmatch(token) is not None:
            # "a bearer bearer x": the word itself may be one that announces a token.
            position = token_start
            continue
        pieces += (text[done:token_start], SECRET)
        done = position = end
    if not pieces:
        return text
    pieces.append(text[done:])
    return b"".join(pieces)
