"""The redaction pipeline of AEP-0003 §9.4 for free text at the ``redacted`` level.

In order: secrets (a) and what the operator lists (b) become ``[REDACTED:secret]``, home directories (c)
become ``~``, e-mail addresses and phone numbers (d) become ``[REDACTED:pii]``. What counts as which is in
``secrets``, ``assignments`` and ``personal``, the face of google-re2 in ``patterns``; here are the order
and the cost:

- One scan by a set of patterns tells which parts have anything to do. Most texts pay for that alone.
- Everything is linear in the text, whoever wrote it.
- Redacting twice changes nothing: inside the pipeline a marker is one byte that no pattern takes for text,
  and what a later part uncovers for an earlier one is redacted in another round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from json import dumps
from urllib.parse import quote, quote_plus

from aep_relay.protocol.redaction import personal, secrets
from aep_relay.protocol.redaction.assignments import (
    assignment_pattern,
    element_pattern,
    hide_assignments,
    hide_elements,
)
from aep_relay.protocol.redaction.patterns import Pattern, compile_set, replace_by

SECRET_MARKER = "[REDACTED:secret]"  # noqa: S105 (the marker of a secret is none)
PII_MARKER = "[REDACTED:pii]"
SHORTEST_SECRET_CHARACTERS = 4
"""A listed value shorter than this would blot out ordinary text."""
MOST_LISTED_BYTES = 100_000
"""Of all names, or of all spellings of all values, together."""

_SECRET_MARKER_BYTES = SECRET_MARKER.encode()
_PII_MARKER_BYTES = PII_MARKER.encode()
_MOST_ROUNDS = 4

_Part = tuple[bytes, Callable[[bytes], bytes]]


class Redactor:
    """The pipeline with its operator's settings: a function from text to redacted text.

    ``secret_names`` are names of variables and configuration keys whose values are secret wherever they are
    assigned; ``secret_values`` are such values themselves, hidden wherever they stand, also escaped for
    JSON or for a URL. Empty ones are ignored. ``pii`` switches §9.4d. Raises ``ValueError``, which never
    quotes a value, if a value has less than ``SHORTEST_SECRET_CHARACTERS`` or if the lists are too long to
    compile.
    """

    __slots__ = ("_parts", "_signs")

    def __init__(
        self, secret_names: Iterable[str] = (), secret_values: Iterable[str] = (), *, pii: bool = True
    ) -> None:
        names = sorted({name for name in secret_names if name})
        _check_size(sum(len(name.encode("utf-8", "surrogatepass")) for name in names))
        elements, assignments = element_pattern(names), assignment_pattern(names)
        parts: list[_Part] = [
            (secrets.PEM_SIGN, secrets.hide_pem),
            (secrets.TOKEN_SIGN, secrets.hide_tokens),
            (secrets.AUTHORIZATION_SIGN, secrets.hide_authorization),
            (elements, partial(hide_elements, pattern=Pattern(elements))),
            (assignments, partial(hide_assignments, pattern=Pattern(assignments))),
        ]
        values = _spellings(secret_values)
        if values:
            parts.append(_listed_values(values))
        parts.append((personal.HOME_SIGN, personal.hide_homes))
        if pii:
            parts.append((personal.EMAIL_SIGN, personal.hide_emails))
            parts.append((personal.PHONE_SIGN, personal.hide_phones))
        self._signs = compile_set([sign for sign, _ in parts])
        self._parts = [hide for _, hide in parts]

    def __call__(self, text: str) -> str:
        """Return ``text`` redacted, or ``text`` itself if it is clean. Never raises."""
        original = text.encode("utf-8", "surrogatepass")
        found = self._signs.Match(original)
        if found is None:
            return text
        start = original.replace(_SECRET_MARKER_BYTES, secrets.SECRET).replace(_PII_MARKER_BYTES, secrets.PII)
        data = start
        # What a part replaces may uncover something for another: it runs again whenever others changed the
        # text.
        left_by: dict[int, bytes] = {}
        for _ in range(_MOST_ROUNDS):
            before = data
            for index in sorted(found):
                if left_by.get(index) is data:
                    continue
                hidden = self._parts[index](data)
                if hidden != data:
                    data = hidden
                left_by[index] = data
            if data is before or (found := self._signs.Match(data)) is None:
                break
        if data == start:
            return text
        data = data.replace(secrets.SECRET, _SECRET_MARKER_BYTES).replace(secrets.PII, _PII_MARKER_BYTES)
        return data.decode("utf-8", "surrogatepass")


def _check_size(listed_bytes: int) -> None:
    # A set of patterns that is too large for its memory finds nothing, and says nothing.
    if listed_bytes > MOST_LISTED_BYTES:
        raise ValueError(
            f"the listed secret names or values are too long together: over {MOST_LISTED_BYTES} bytes"
        )


def _spellings(values: Iterable[str]) -> list[bytes]:
    """Return the values in every spelling, the longest first, so that none is hidden only in part."""
    spellings: set[str] = set()
    for value in values:
        if not value:
            continue
        if len(value) < SHORTEST_SECRET_CHARACTERS:
            raise ValueError(f"a listed secret value is shorter than {SHORTEST_SECRET_CHARACTERS} characters")
        spellings |= {value, dumps(value)[1:-1], dumps(value, ensure_ascii=False)[1:-1]}
        if value.isascii():
            spellings |= {quote(value, safe=""), quote(value), quote_plus(value)}
    encoded = {spelling.encode("utf-8", "surrogatepass") for spelling in spellings}
    _check_size(sum(map(len, encoded)))
    return sorted(encoded, key=lambda spelling: (-len(spelling), spelling))


def _listed_values(values: list[bytes]) -> _Part:
    pattern = b"|".join(b"".join(b"\\x%02x" % byte for byte in value) for value in values)
    return pattern, partial(replace_by, Pattern(pattern), replacement=secrets.SECRET)
