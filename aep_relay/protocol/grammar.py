"""The grammars of the envelope's strings: types, extension names, times, URIs, trace context.

Invariants: ASCII classes only (``\\d`` would admit other scripts' digits), whole-string matches only, and
no pattern backtracks further than it has read: every one is linear in its input. AEP-0001 §5; RFC 3339
§5.6, RFC 3986 appendix A.
"""

from __future__ import annotations

import re
from typing import Final

from aep_relay.protocol.registry import CATEGORIES

TYPE: Final = re.compile(
    rf"(?:{'|'.join(CATEGORIES)})(?:\.[a-z0-9_]+)++|x\.[a-z0-9_-]+\.[a-z0-9_]+(?:\.[a-z0-9_]+)++"
)
EXTENSION_NAME: Final = re.compile(r"[a-z0-9]{1,20}")
TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")

_LEAP_YEAR = r"(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
_DATE = (
    r"(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    rf"|02-(?:0[1-9]|1[0-9]|2[0-8]))|{_LEAP_YEAR}-02-29)"
)
_HOUR, _MINUTE = "(?:[01][0-9]|2[0-3])", "[0-5][0-9]"
_PLAIN_TIMES = re.compile(
    rf"(?:{_DATE}[Tt]{_HOUR}:{_MINUTE}:{_MINUTE}(?:\.[0-9]++)?(?:[Zz]|[+-]{_HOUR}:{_MINUTE})\n)*"
)
"""Any number of times, each on a line of its own, without a leap second among them."""
_TIME = re.compile(
    rf"{_DATE}[Tt]({_HOUR}):({_MINUTE}):(?:{_MINUTE}|(60))(?:\.[0-9]++)?(?:[Zz]|([+-])({_HOUR}):({_MINUTE}))"
)
_LAST_MINUTE = 23 * 60 + 59
_MINUTES_A_DAY = 24 * 60

# Of single characters alone, so that a source of some MiB costs no memory: a "%" is one of them, and what has to follow
# it is looked for apart.
_PLAIN = r"A-Za-z0-9._~!$&'()*+,;=%\-"
_SEGMENT = rf"{_PLAIN}:@"
_AUTHORITY = rf"(?:[:{_PLAIN}]*+@)?(?:\[[0-9A-Za-z:.]++\]|[{_PLAIN}]*+)(?::[0-9]*+)?"
_URI = re.compile(
    rf"[A-Za-z][A-Za-z0-9+.-]*+:(?://{_AUTHORITY}(?:/[/{_SEGMENT}]*+)?|/?(?:[{_SEGMENT}][/{_SEGMENT}]*+)?)"
    rf"(?:\?[/?{_SEGMENT}]*+)?(?:\#[/?{_SEGMENT}]*+)?"
)
_NO_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")


def is_time(text: str) -> bool:
    """Tell whether ``text`` is an RFC 3339 date-time, its timezone included, that names a possible moment.

    A leap second is possible in the last minute of a UTC day.
    """
    match = _TIME.fullmatch(text)
    return match is not None and (match.group(3) is None or _may_leap(match))


def are_times(texts: list[str]) -> bool:
    """Tell whether each of ``texts`` is what ``is_time`` asks for, at a third of the cost."""
    lines = "\n".join(texts) + "\n"
    if lines.count("\n") == len(texts) and _PLAIN_TIMES.fullmatch(lines) is not None:
        return True
    return all(map(is_time, texts))


def is_uri(text: str) -> bool:
    """Tell whether ``text`` is an RFC 3986 URI with a scheme."""
    return _URI.fullmatch(text) is not None and _NO_ESCAPE.search(text) is None


def _may_leap(match: re.Match[str]) -> bool:
    hour, minute, _, sign, ahead_hours, ahead_minutes = match.groups(default="0")
    ahead = int(ahead_hours) * 60 + int(ahead_minutes)
    utc = int(hour) * 60 + int(minute) + (ahead if sign == "-" else -ahead)
    return utc % _MINUTES_A_DAY == _LAST_MINUTE
