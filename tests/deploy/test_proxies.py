"""The TLS proxies' configurations, each in front of an installed relay, with certificates of a throw-away CA."""

from __future__ import annotations

import json
import os
import re
import shutil
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import trustme

from aep_relay.hub.limits import Limits
from tests import patient
from tests.bindings.served import JSON, event, hello
from tests.installed import QUIET, installed
from tests.listening import listening
from tests.ports import free_port

PROXIES = Path(__file__).parents[2] / "deploy" / "proxy"
PATIENCE_SECONDS = 30.0
TOKEN = "secret-of-the-proxy-tests"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


def nginx(text: str, folder: Path) -> tuple[str, list[str]]:
    text = text.replace("hub.example.org", "localhost").replace("/var/log/nginx/", f"{folder}/")
    text = text.replace(
        "http {", "http {\n" + "".join(f"    {kind}_temp_path {folder}/temp;\n" for kind in (
            "client_body", "proxy", "fastcgi", "uwsgi", "scgi"
        )), 1
    )  # fmt: skip
    main = f"daemon off; pid {folder}/nginx.pid;"
    return text, ["nginx", "-e", "stderr", "-p", str(folder), "-c", str(folder / "nginx.conf"), "-g", main]


def caddy(text: str, folder: Path) -> tuple[str, list[str]]:
    text = text.replace("hub.example.org {", "https://localhost:443 {").replace("# tls ", "tls ")
    text = text.replace("{\n", "{\n\tadmin off\n\tauto_https disable_redirects\n", 1)
    text = text.replace("/var/log/caddy/", f"{folder}/")
    return text, ["caddy", "run", "--adapter", "caddyfile", "--config", str(folder / "Caddyfile")]


def haproxy(text: str, folder: Path) -> tuple[str, list[str]]:
    # Not every machine gives a process the descriptors for as many.
    text = text.replace("maxconn 20000", "maxconn 400")
    return text, ["haproxy", "-db", "-f", str(folder / "haproxy.cfg")]


KINDS: dict[str, tuple[str, Callable[[str, Path], tuple[str, list[str]]]]] = {
    "nginx": ("nginx.conf", nginx),
    "caddy": ("Caddyfile", caddy),
    "haproxy": ("haproxy.cfg", haproxy),
}


def program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin")


def needs(name: str) -> None:
    if program(name) is None:
        pytest.skip(f"there is no {name}")


@dataclass(frozen=True)
class Proxied:
    """A proxy, and the folder of what it logs."""

    folder: Path
    port: int
    trust: ssl.SSLContext

    def client(self) -> httpx.Client:
        base = f"https://localhost:{self.port}"
        return httpx.Client(base_url=base, verify=self.trust, timeout=PATIENCE_SECONDS, trust_env=False)

    def logs(self) -> str:
        return "".join(path.read_text() for path in self.folder.glob("*.log"))


@contextmanager
def running(name: str, folder: Path, relay_port: int, port: int) -> Iterator[ssl.SSLContext]:
    """Run a proxy as its shipped file says, but for names, ports and paths."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    certificate = authority.issue_cert("localhost")
    certificate.private_key_and_cert_chain_pem.write_to_path(folder / "hub.pem")
    certificate.private_key_pem.write_to_path(folder / "privkey.pem")
    for blob in certificate.cert_chain_pems:
        blob.write_to_path(folder / "fullchain.pem", append=True)
    file, adapt = KINDS[name]
    text = (PROXIES / file).read_text()
    assert "127.0.0.1:8787" in text
    text, command = adapt(text.replace("127.0.0.1:8787", f"127.0.0.1:{relay_port}"), folder)
    text = re.sub(r":443\b|(?<=listen )443", lambda found: found[0].replace("443", str(port)), text)
    (folder / file).write_text(text.replace("/etc/aep-relay/tls/", f"{folder}/"))
    trust = ssl.create_default_context()
    authority.configure_trust(trust)
    call = [str(program(command[0])), *command[1:]]
    env = {**os.environ, "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    with listening(call, port, folder / "process.log", env):
        yield trust


@pytest.fixture(scope="module", params=list(KINDS))
def proxied(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxied]:
    name: str = request.param
    needs(name)
    folder = tmp_path_factory.mktemp(name)
    # Its workers may run as somebody else.
    folder.chmod(0o755)
    config = QUIET + f'[auth]\ntoken = "{TOKEN}"\nbehind_tls_proxy = true\n'
    port = free_port()
    with installed(folder, config) as relay, running(name, folder, relay.port(), port) as trust:
        found = Proxied(folder, port, trust)
        with found.client() as client:
            deadline = time.monotonic() + PATIENCE_SECONDS
            while client.get("/healthz").status_code != 200:
                assert time.monotonic() < deadline, found.logs()
                time.sleep(0.05)
        yield found


def test_health_is_passed_on(proxied: Proxied) -> None:
    with proxied.client() as client:
        assert client.get("/healthz").json() == {"ok": True}
        assert client.get("/connections").status_code == 401
        assert client.get("/connections", headers=BEARER).status_code == 200


def test_streams_are_not_buffered(proxied: Proxied) -> None:
    with proxied.client() as client, client.stream("GET", "/stream", headers=BEARER) as stream:
        lines = (line for line in stream.iter_lines() if line)
        assert next(lines) == ": stream open"
        for seq in range(3):
            assert client.post("/events", content=event(seq, "sse"), headers=JSON | BEARER).status_code == 202
            # The next one is sent only when this one has come: whatever holds it back would hold it for ever.
            found = next(line for line in lines if line.startswith("data: "))
            assert json.loads(found.removeprefix("data: "))["seq"] == seq


def test_sockets_are_upgraded(proxied: Proxied) -> None:
    url = f"wss://localhost:{proxied.port}/socket?access_token={TOKEN}"
    with patient.connect(url, ssl=proxied.trust, proxy=None) as client:
        client.send(json.dumps(hello("both")))
        assert json.loads(client.recv(PATIENCE_SECONDS))["type"] == "hello"
        client.send(json.dumps({"type": "subscribe", "id": "mine", "filter": {"session": "ws"}}))
        assert json.loads(client.recv(PATIENCE_SECONDS)) == {"type": "subscribed", "id": "mine"}
        for seq in range(3):
            client.send(event(seq, "ws").decode())
            assert json.loads(client.recv(PATIENCE_SECONDS))["seq"] == seq


def test_what_the_relay_takes_the_proxy_takes(proxied: Proxied) -> None:
    batch = b"\n".join(event(seq, "large", data={"text": "x" * 4000}) for seq in range(1000))
    assert len(batch) > 3 << 20
    headers = JSON | BEARER | {"Content-Type": "application/x-ndjson"}
    with proxied.client() as client:
        assert client.post("/events", content=batch, headers=headers).json() == {"accepted": 1000}


def test_logs_hold_paths_but_no_query_strings(proxied: Proxied) -> None:
    with proxied.client() as client:
        url = f"/stream?live=0&from=all&access_token={TOKEN}"
        assert client.get(url).status_code == 200
        assert client.get("/no-such-path?access_token=" + TOKEN).status_code == 404
    deadline = time.monotonic() + PATIENCE_SECONDS
    while "/no-such-path" not in proxied.logs():
        assert time.monotonic() < deadline, proxied.logs()
        time.sleep(0.02)
    assert "/stream" in proxied.logs()
    assert "access_token" not in proxied.logs()
    assert TOKEN not in proxied.logs()


@pytest.mark.parametrize("name", list(KINDS))
def test_a_relay_that_is_gone_is_an_error_of_the_proxy(name: str, tmp_path: Path) -> None:
    needs(name)
    tmp_path.chmod(0o755)
    port = free_port()
    with running(name, tmp_path, free_port(), port) as trust:
        gone = Proxied(tmp_path, port, trust)
        with gone.client() as client:
            assert client.get(f"/stream?access_token={TOKEN}").status_code in (502, 503)
    assert TOKEN not in gone.logs()


def test_timeouts_are_longer_than_the_heartbeats() -> None:
    bound = Limits().ping_interval_seconds * 2
    patterns = {
        "nginx.conf": r"proxy_(?:read|send)_timeout (\d+)s;",
        "haproxy.cfg": r"timeout (?:client|server|tunnel) (\d+)s",
    }
    for file, pattern in patterns.items():
        found = re.findall(pattern, (PROXIES / file).read_text())
        assert len(found) >= 3
        assert all(int(seconds) > bound for seconds in found)
    # Caddy has none unless they are asked for.
    assert not re.search(r"read_timeout|write_timeout|stream_timeout", (PROXIES / "Caddyfile").read_text())
