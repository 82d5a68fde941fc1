"""A byte stream to an upstream: TCP, TLS or a unix socket.

Invariants: TLS is the standard library's default context, so that certificates and names are verified always; there
is no way to switch that off. Whatever goes wrong is a ``Down``.
"""

from __future__ import annotations

import os
import socket
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

import trio

from aep_relay.upstream.errors import UNREACHABLE, Down

if TYPE_CHECKING:
    from aep_relay.config import Upstream


@dataclass(frozen=True, slots=True)
class Target:
    """Where an upstream is."""

    host: str
    """Name or address, without brackets; ``localhost`` behind a unix socket."""
    port: int
    tls: bool
    unix: str | None
    base: str
    """Path before every endpoint, without a slash at its end."""

    @property
    def authority(self) -> str:
        """The value of the Host field."""
        name = f"[{self.host}]" if ":" in self.host else self.host
        return name if self.unix is not None or self.port == _default(self.tls) else f"{name}:{self.port}"

    @property
    def url(self) -> str:
        """How the upstream is called in logs and listings."""
        if self.unix is not None:
            return f"unix:{self.unix}"
        return f"{'https' if self.tls else 'http'}://{self.authority}{self.base}"


def _default(tls: bool) -> int:
    return 443 if tls else 80


def target(upstream: Upstream) -> Target:
    """Return where ``upstream``, as configured, is."""
    if upstream.unix is not None:
        return Target("localhost", 0, False, upstream.unix, "")
    url = urlsplit(upstream.url or "")
    tls = url.scheme in ("https", "wss")
    return Target(url.hostname or "", url.port or _default(tls), tls, None, url.path.rstrip("/"))


class Dial(Protocol):
    """Opens connections to one upstream."""

    target: Target

    async def __call__(self) -> trio.abc.Stream:
        """Return a new connection. Raises ``Down``."""


class Dialler:
    """Opens connections as ``upstream`` is configured. Raises ``OSError`` for unusable certificate files."""

    def __init__(self, upstream: Upstream) -> None:
        self.target = target(upstream)
        self._context = _context(upstream) if self.target.tls else None
        self._seconds = upstream.connect_timeout_seconds

    async def __call__(self) -> trio.abc.Stream:
        """Connect, and shake hands where it is TLS. Raises ``Down``."""
        try:
            with trio.fail_after(self._seconds):
                return await self._open()
        except trio.TooSlowError:
            raise Down(UNREACHABLE, f"no connection within {self._seconds:g} s") from None
        except OSError as error:
            raise Down(UNREACHABLE, _reason(error)) from None

    async def _open(self) -> trio.abc.Stream:
        if self.target.unix is not None:
            return await trio.open_unix_socket(self.target.unix)
        stream = await trio.open_tcp_stream(self.target.host, self.target.port)
        return stream if self._context is None else await self._secured(stream, self._context)

    async def _secured(self, stream: trio.SocketStream, context: ssl.SSLContext) -> trio.abc.Stream:
        secured = trio.SSLStream(stream, context, server_hostname=self.target.host, https_compatible=True)
        try:
            await secured.do_handshake()
        except trio.BrokenResourceError as error:
            await trio.aclose_forcefully(stream)
            cause = error.__cause__
            detail = (
                getattr(cause, "verify_message", None)
                or getattr(cause, "reason", None)
                or cause
                or "broken off"
            )
            raise Down(UNREACHABLE, f"TLS: {detail}") from None
        except BaseException:
            await trio.aclose_forcefully(stream)
            raise
        return secured


def _reason(error: BaseException) -> str:
    """Return what the operating system says; of several attempts, of the first one."""
    cause = error.__cause__
    if isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[0]
    if isinstance(cause, OSError):
        return _reason(cause)
    if isinstance(error, OSError) and error.errno and not isinstance(error, socket.gaierror):
        # Trio names the address besides, as Python writes it.
        return os.strerror(error.errno)
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or "no connection"


def _context(upstream: Upstream) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=upstream.ca_file)
    if upstream.certificate_file is not None:
        # Nobody is there to be asked for a pass phrase.
        context.load_cert_chain(upstream.certificate_file, upstream.key_file, password="")
    return context
