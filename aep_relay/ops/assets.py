"""The dashboard's files, read once, and the headers that keep its page to itself."""

from __future__ import annotations

from hashlib import sha256
from importlib.resources import files
from typing import NamedTuple

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}

HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}
"""On every answer of the operator plane."""

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'{}; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)


class Asset(NamedTuple):
    """One file as it is served."""

    body: bytes
    content_type: str
    etag: str


def load() -> dict[str, Asset]:
    """Return all files of the dashboard by name."""
    found: dict[str, Asset] = {}
    for file in files("aep_relay.ops").joinpath("static").iterdir():
        suffix = file.name[file.name.rfind(".") :]
        if suffix in _TYPES:
            body = file.read_bytes()
            found[file.name] = Asset(body, _TYPES[suffix], sha256(body).hexdigest()[:16])
    return found


def policy(sources: list[str]) -> str:
    """Return the Content-Security-Policy of a page that may also connect to ``sources``.

    Trusted Types have the browser refuse every attempt to turn text into markup.
    """
    return _POLICY.format("".join(f" {source}" for source in sources))
