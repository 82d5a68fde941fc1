"""The checks of ``aep-relay doctor``, from the address up.

Invariants: nothing is emitted and nothing changed; a check that can't be made says so, and the next one is made all
the same, unless nothing answers at all.
"""

from __future__ import annotations

import platform
import socket
import ssl
import time
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import trio

from aep_relay import __version__
from aep_relay.cli.support import probes
from aep_relay.client.connect import open_stream, reason
from aep_relay.client.errors import ClientError, Refused, Unreachable
from aep_relay.client.http import asking
from aep_relay.config.hosts import is_loopback

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aep_relay.client.target import Target

OK: Final = "ok"
NOTE: Final = "note"
WARNING: Final = "warning"
FAILED: Final = "failed"

CONNECT_SECONDS: Final = 5.0
CHECK_SECONDS: Final = 20.0
EXPIRES_SOON_SECONDS: Final = 14 * 86400.0

_FAMILIES = {socket.AF_INET: "IPv4", socket.AF_INET6: "IPv6"}


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found, and what to do about it."""

    check: str
    level: str
    text: str
    remedy: str = ""

    def document(self) -> dict[str, str]:
        """Return it for JSON."""
        return asdict(self)


class Checkup:
    """All checks of one relay."""

    def __init__(self, target: Target, origin: str, *, patient: bool) -> None:
        self.target = target
        self.origin = origin
        self.patient = patient
        self.findings: list[Finding] = []
        self.is_unreachable = False
        self.is_open = False
        """Whether the relay wants no token, once that is known."""

    @property
    def failed(self) -> bool:
        """Whether anything failed."""
        return any(finding.level == FAILED for finding in self.findings)

    def found(self, check: str, level: str, text: str, remedy: str = "") -> None:
        """Note a finding."""
        self.findings.append(Finding(check, level, text, remedy))

    async def run(self) -> None:
        """Make all checks."""
        versions = f"aep-relay {__version__}, Python {platform.python_version()}, {ssl.OPENSSL_VERSION}"
        self.found("client", NOTE, f"{versions}; asking {self.target.url}")
        for name, check in (("addresses", self._addresses), ("tls", self._tls)):
            await self._guarded(name, check)
            if self.is_unreachable:
                return
        async with asking(self.target) as client:
            for name, probe in (
                ("discovery", probes.discovery),
                ("versions", probes.versions),
                ("auth", probes.auth),
                ("cors", probes.cors),
                ("clock", probes.clock),
            ):
                await self._guarded(name, partial(probe, self, client))
        await self._guarded("buffering", partial(probes.buffering, self))
        await self._guarded("websocket", partial(probes.websocket, self))

    async def _guarded(self, name: str, check: Callable[[], Awaitable[None]]) -> None:
        seconds = CHECK_SECONDS + (probes.HEARTBEAT_SECONDS if self.patient else 0)
        try:
            with trio.fail_after(seconds):
                await check()
        except trio.TooSlowError:
            self.found(
                name,
                FAILED,
                f"no end after {seconds:g} s",
                "look at the proxy in between, and the relay's log",
            )
        except Refused as error:
            self.found(name, FAILED, f"refused: {error.message}", error.advice or "")
        except ClientError as error:
            self.found(name, FAILED, error.message, error.advice or "look at the relay's log")

    async def _addresses(self) -> None:
        target = self.target
        if target.host is None:
            await self._unix()
            return
        try:
            infos = await trio.socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
        except OSError as error:
            self.is_unreachable = True
            text = f"{target.host} has no address: {reason(error)}"
            self.found(
                "addresses", FAILED, text, "check the name in --relay or AEP_RELAY, and the resolver here"
            )
            return
        answering: list[str] = []
        silent: list[str] = []
        for family, address in dict.fromkeys((info[0], info[4]) for info in infos):
            name = f"{address[0]} ({_FAMILIES.get(family, family)})"
            problem = await _try(family, address)
            (silent if problem else answering).append(f"{name}{f': {problem}' if problem else ''}")
        if not answering:
            self.is_unreachable = True
            remedy = "start it with `aep-relay serve`, or check port, firewall and the relay's listen.host"
            self.found("addresses", FAILED, f"nothing answers: {', '.join(silent)}", remedy)
            return
        self.found("addresses", OK, f"{', '.join(answering)} answers")
        if silent:
            remedy = (
                "clients that try it first wait for nothing: set listen.host to a name with both, such as localhost, "
                "or name the other address"
            )
            self.found("addresses", WARNING, f"does not answer: {', '.join(silent)}", remedy)

    async def _unix(self) -> None:
        try:
            stream = await open_stream(self.target, CONNECT_SECONDS)
        except Unreachable as error:
            self.is_unreachable = True
            remedy = "check listen.unix and listen.unix_mode: the socket is for its owner unless they say otherwise"
            self.found("addresses", FAILED, error.message, remedy)
            return
        await trio.aclose_forcefully(stream)
        self.found("addresses", OK, f"the socket {self.target.unix} answers")

    async def _tls(self) -> None:
        target = self.target
        if not target.tls:
            if target.host is not None and not is_loopback(target.host):
                text = "Events and token go over the network in clear text"
                self.found("tls", WARNING, text, "put a TLS proxy in front of the relay, and use https://")
            return
        try:
            stream = await open_stream(target, CONNECT_SECONDS)
        except Unreachable:
            self.is_unreachable = True
            raise
        assert isinstance(stream, trio.SSLStream)  # noqa: S101
        version, certificate = stream.version(), stream.getpeercert()
        await trio.aclose_forcefully(stream)
        left_seconds = ssl.cert_time_to_seconds(str(certificate["notAfter"])) - time.time()
        text = f"{version}, the certificate is trusted and lasts for {left_seconds / 86400:.0f} days"
        if left_seconds < EXPIRES_SOON_SECONDS:
            self.found("tls", WARNING, text, "renew it; look why that did not happen by itself")
        else:
            self.found("tls", OK, text)


async def _try(family: int, address: tuple[object, ...]) -> str | None:
    """Return why ``address`` can't be connected to, None if it can."""
    with trio.socket.socket(family, socket.SOCK_STREAM) as sock:
        try:
            with trio.fail_after(CONNECT_SECONDS):
                await sock.connect(address)
        except trio.TooSlowError:
            return f"no answer within {CONNECT_SECONDS:g} s"
        except OSError as error:
            return reason(error)
    return None
