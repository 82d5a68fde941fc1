"""A byte stream to a relay: TCP, TLS or a unix socket, with the certificate verified."""

from __future__ import annotations

import os
import socket
import ssl
from typing import TYPE_CHECKING, Final

import trio

from aep_relay.client.errors import Unreachable

if TYPE_CHECKING:
    from aep_relay.client.target import Target

CONNECT_SECONDS: Final = 10.0

_START = "is it running? `aep-relay serve` starts one; --relay or AEP_RELAY name another"
_NAME = "check the host name in --relay or AEP_RELAY"
_TRUST = "a relay with a certificate of a private authority needs SSL_CERT_FILE set to that authority's certificate"
_DOCTOR = "`aep-relay doctor` looks for the cause"

ByteStream = trio.SocketStream | trio.SSLStream[trio.SocketStream]


async def open_stream(target: Target, seconds: float = CONNECT_SECONDS) -> ByteStream:
    """Connect, and shake hands where it is TLS. Raises ``Unreachable``."""
    stream: trio.SocketStream | None = None
    try:
        with trio.fail_after(seconds):
            stream = await _plain(target)
            return await _secured(stream, target) if target.tls else stream
    except trio.TooSlowError:
        problem = "cannot be reached: no answer" if stream is None else "does not speak TLS: no answer"
        raise Unreachable(f"{target.url} {problem} within {seconds:g} s", _DOCTOR) from None
    except OSError as error:
        raise Unreachable(f"{target.url} cannot be reached: {reason(error)}", _advice(error)) from None


async def _plain(target: Target) -> trio.SocketStream:
    if target.unix is not None:
        return await trio.open_unix_socket(target.unix)
    return await trio.open_tcp_stream(target.host or "", target.port)


async def _secured(stream: trio.SocketStream, target: Target) -> trio.SSLStream[trio.SocketStream]:
    context = ssl.create_default_context()
    secured = trio.SSLStream(stream, context, server_hostname=target.host, https_compatible=True)
    try:
        await secured.do_handshake()
    except trio.BrokenResourceError as error:
        await trio.aclose_forcefully(stream)
        raise _untrusted(target, error.__cause__ or error) from None
    except trio.Cancelled:
        await trio.aclose_forcefully(stream)
        raise
    return secured


def _untrusted(target: Target, cause: BaseException) -> Unreachable:
    if isinstance(cause, ssl.SSLCertVerificationError):
        return Unreachable(f"the certificate of {target.url} is not trusted: {cause.verify_message}", _TRUST)
    return Unreachable(
        f"{target.url} does not speak TLS, or not as it is spoken here: {cause}",
        "a relay without TLS is named with http://",
    )


def reason(error: BaseException) -> str:
    """Return why a connection failed, in a few words; of several attempts, each different reason once."""
    cause = error.__cause__
    if isinstance(cause, BaseExceptionGroup):
        return "; ".join(dict.fromkeys(reason(each) for each in cause.exceptions))
    if cause is not None:
        return reason(cause)
    if isinstance(error, OSError) and error.errno and not isinstance(error, socket.gaierror | ssl.SSLError):
        # Trio names the address besides, as Python writes it.
        return os.strerror(error.errno)
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _advice(error: OSError) -> str:
    return _NAME if isinstance(error, socket.gaierror) else _START
