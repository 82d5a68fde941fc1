"""Where to listen, as text; and which host names and addresses mean this machine and no other."""

from __future__ import annotations

import re
from ipaddress import ip_address

_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]{1,253})(?::[0-9]{1,5})?")
_BIND = re.compile(r"\[([0-9A-Fa-f:.]+)\]:([0-9]{1,5})|([A-Za-z0-9._-]{1,253}):([0-9]{1,5})|unix:(/[^\0]+)")
_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


def host_name(host: str) -> str | None:
    """Return the name in a Host field, in lower case and without its port; None when it is malformed."""
    match = _HOST.fullmatch(host)
    return None if match is None else match[1].lower()


def is_loopback(name: str) -> bool:
    """Whether ``name``, as it stands in a Host field or in the configuration, is this machine and no other."""
    bare = name.strip("[]").lower()
    if bare in _LOOPBACK_NAMES:
        return True
    try:
        return ip_address(bare).is_loopback
    except ValueError:
        return False  # a name: wherever it leads today, it may lead elsewhere tomorrow


def split_bind(bind: str) -> tuple[str, int] | str | None:
    """Return host and port of ``HOST:PORT``, or the path of ``unix:/PATH``; None when it is neither."""
    match = _BIND.fullmatch(bind)
    if match is None:
        return None
    if match[5]:
        return match[5]
    host, port = match[1] or match[3], int(match[2] or match[4])
    return (host, port) if port <= 65535 else None
