"""Connections to an upstream: TCP, TLS that is always verified, unix sockets."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import trio
import trustme

from aep_relay.config import ConfigError, Upstream
from aep_relay.upstream.chain import Chain
from aep_relay.upstream.dial import Dialler, target
from aep_relay.upstream.errors import UNREACHABLE, Down
from tests.bindings.served import Served, serving


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def files(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    authority.cert_pem.write_to_path(folder / "ca.pem")
    trustme.CA().cert_pem.write_to_path(folder / "other.pem")
    authority.issue_cert("client@example.org").private_key_and_cert_chain_pem.write_to_path(
        folder / "client.pem"
    )
    (folder / "empty.pem").touch()
    return folder


@asynccontextmanager
async def listening(context: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """Answer each connection with ``hello`` once it is open."""

    async def serve(stream: trio.SocketStream) -> None:
        try:
            async with (
                stream
                if context is None
                else trio.SSLStream(stream, context, server_side=True, https_compatible=True) as open_
            ):
                await open_.send_all(b"hello")
        except trio.BrokenResourceError:
            pass

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, serve, 0)
        yield listeners[0].socket.getsockname()[1]
        nursery.cancel_scope.cancel()


def serving_as(authority: trustme.CA, name: str) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert(name).configure_cert(context)
    return context


async def greeting(upstream: Upstream) -> bytes:
    stream = await Dialler(upstream)()
    async with stream:
        return bytes(await stream.receive_some(100))


async def problem(upstream: Upstream) -> str:
    with pytest.raises(Down) as caught:
        await greeting(upstream)
    assert caught.value.reason == UNREACHABLE
    return caught.value.detail


@pytest.mark.parametrize(
    ("url", "authority_", "base", "port", "tls"),
    [
        ("http://hub", "hub", "", 80, False),
        ("ws://hub:80/", "hub", "", 80, False),
        ("https://hub/a/b/", "hub", "/a/b", 443, True),
        ("wss://hub:8443", "hub:8443", "", 8443, True),
        ("https://[::1]:9/x", "[::1]:9", "/x", 9, True),
    ],
)
def test_where_an_upstream_is(url: str, authority_: str, base: str, port: int, tls: bool) -> None:
    found = target(Upstream("a", url=url))
    assert (found.authority, found.base, found.port, found.tls) == (authority_, base, port, tls)
    assert found.url == f"{'https' if tls else 'http'}://{authority_}{base}"


async def test_tcp() -> None:
    async with listening() as port:
        assert await greeting(Upstream("a", url=f"http://localhost:{port}")) == b"hello"


async def test_tls_with_an_authority_of_its_own(authority: trustme.CA, files: Path) -> None:
    async with listening(serving_as(authority, "localhost")) as port:
        upstream = Upstream("a", url=f"https://localhost:{port}", ca_file=str(files / "ca.pem"))
        assert await greeting(upstream) == b"hello"


@pytest.mark.parametrize("ca", [None, "other.pem"])
async def test_a_certificate_of_somebody_else_is_refused(
    ca: str | None, authority: trustme.CA, files: Path
) -> None:
    async with listening(serving_as(authority, "localhost")) as port:
        upstream = Upstream(
            "a", url=f"https://localhost:{port}", ca_file=None if ca is None else str(files / ca)
        )
        assert "unable to get local issuer certificate" in await problem(upstream)


async def test_a_certificate_for_somebody_else_is_refused(authority: trustme.CA, files: Path) -> None:
    async with listening(serving_as(authority, "hub.example.org")) as port:
        upstream = Upstream("a", url=f"wss://localhost:{port}", ca_file=str(files / "ca.pem"))
        assert "Hostname mismatch" in await problem(upstream)


async def test_a_client_certificate_is_shown(authority: trustme.CA, files: Path) -> None:
    context = serving_as(authority, "localhost")
    context.verify_mode = ssl.CERT_REQUIRED
    authority.configure_trust(context)
    async with listening(context) as port:
        url, ca = f"https://localhost:{port}", str(files / "ca.pem")
        client = Upstream("a", url=url, ca_file=ca, certificate_file=str(files / "client.pem"))
        assert await greeting(client) == b"hello"
        # The server says no when the client's handshake is over already.
        with suppress(Down, trio.BrokenResourceError):
            assert await greeting(Upstream("a", url=url, ca_file=ca)) == b""


async def test_who_speaks_no_tls() -> None:
    async with listening() as port:
        assert (await problem(Upstream("a", url=f"https://localhost:{port}"))).startswith("TLS: ")


async def test_nobody_answers() -> None:
    async with listening() as port:
        pass
    assert await problem(Upstream("a", url=f"http://127.0.0.1:{port}")) == "Connection refused"
    assert await problem(Upstream("a", unix="/nowhere/relay.sock")) == "No such file or directory"


async def test_who_accepts_and_says_nothing_to_tls() -> None:
    listener = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
    async with listener:
        port = listener.socket.getsockname()[1]
        upstream = Upstream("a", url=f"https://127.0.0.1:{port}", connect_timeout_seconds=0.1)
        assert await problem(upstream) == "no connection within 0.1 s"


async def test_a_unix_socket(tmp_path: Path) -> None:
    listener = trio.socket.socket(trio.socket.AF_UNIX)
    with listener:
        await listener.bind(str(tmp_path / "relay.sock"))
        listener.listen()
        dialler = Dialler(Upstream("a", unix=str(tmp_path / "relay.sock")))
        assert (dialler.target.authority, dialler.target.url) == ("localhost", f"unix:{tmp_path}/relay.sock")
        async with await dialler():
            (await listener.accept())[0].close()


async def test_certificate_files_that_are_none(files: Path) -> None:
    async with serving() as relay:
        assert isinstance(relay, Served)
        for name in ("ca_file", "certificate_file"):
            upstream = Upstream("hub", url="https://hub", **{name: str(files / "empty.pem")})  # type: ignore[arg-type]
            with pytest.raises(ConfigError, match="upstream hub: its certificates cannot be used"):
                Chain(relay.service, [upstream])


def test_there_is_no_way_to_trust_anybody(files: Path) -> None:
    dialler = Dialler(Upstream("a", url="https://hub", ca_file=str(files / "ca.pem")))
    context = dialler._context
    assert context is not None
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
