"""A leaf and an edge behind a TLS proxy of their hub, which has its defaults where these stand in the way.

The proxy buffers, compresses and limits bodies as it does by itself, and ends what is silent for three seconds:
heartbeats, which are set to come more often than that, keep links, streams and sockets alive.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import trio
import trustme
from websockets.sync.client import ClientConnection, connect

from tests.bindings.served import NDJSON, hello
from tests.listening import listening
from tests.ports import free_port
from tests.system.chained import TOKEN, Site, chain, events, start, until, up

PATIENCE_SECONDS = 30.0
IDLE_SECONDS = 4.0
"""Longer than the proxies let a connection be silent."""
HEARTBEATS = "[limits]\nping_interval_seconds = 0.3\n"
BEARER = {"Authorization": f"Bearer {TOKEN}"}

NGINX = """
{user}
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    gzip on;
    gzip_types text/event-stream application/json;
    map $http_upgrade $connection_upgrade {{ default upgrade; "" ""; }}
    server {{
        listen 127.0.0.1:{port} ssl;
        ssl_certificate {folder}/hub.pem;
        ssl_certificate_key {folder}/hub.pem;
        location / {{
            proxy_pass http://127.0.0.1:{target};
            proxy_http_version 1.1;
            proxy_set_header Host $host;
            proxy_set_header Upgrade $http_upgrade;
            proxy_set_header Connection $connection_upgrade;
            proxy_read_timeout 3s;
        }}
    }}
}}
"""
HAPROXY = """
defaults
    mode http
    timeout connect 5s
    timeout client 3s
    timeout server 3s
    timeout tunnel 3s
    compression algo gzip
    compression type text/event-stream application/json
frontend tls
    bind 127.0.0.1:{port} ssl crt {folder}/hub.pem
    default_backend hub
backend hub
    server hub 127.0.0.1:{target}
"""


@dataclass(frozen=True)
class Kind:
    """A proxy: how it is configured, run and told to read its configuration again."""

    config: str
    command: tuple[str, ...]
    reload: signal.Signals


KINDS = {
    "nginx": Kind(
        NGINX, ("nginx", "-e", "stderr", "-p", "{folder}", "-c", "{folder}/proxy.conf"), signal.SIGHUP
    ),
    "haproxy": Kind(HAPROXY, ("haproxy", "-W", "-db", "-f", "{folder}/proxy.conf"), signal.SIGUSR2),
}


@dataclass(frozen=True)
class Proxied:
    """A running proxy."""

    process: subprocess.Popen[bytes]
    port: int
    trust: ssl.SSLContext
    authority: Path

    @property
    def url(self) -> str:
        return f"https://localhost:{self.port}"


@contextmanager
def running(name: str, folder: Path, target: int) -> Iterator[Proxied]:
    """Run a proxy in front of ``target``, with the certificate of a throw-away authority."""
    folder.mkdir(mode=0o755)
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(folder / "hub.pem")
    trust = ssl.create_default_context()
    authority.configure_trust(trust)
    kind, port = KINDS[name], free_port()
    # What it buffers in files, its workers have to be able to write into the tests' folder.
    user = "user root;" if os.geteuid() == 0 else ""
    (folder / "proxy.conf").write_text(kind.config.format(folder=folder, port=port, target=target, user=user))
    program, *arguments = (part.format(folder=folder) for part in kind.command)
    found = shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if found is None:
        pytest.skip(f"there is no {name}")
    with listening([found, *arguments], port, folder / "process.log") as process:
        yield Proxied(process, port, trust, folder / "ca.pem")


class Watcher:
    """Who reads at the hub, through the proxy: a stream and a socket."""

    def __init__(self, lines: Iterator[str], client: ClientConnection) -> None:
        self._lines, self._client = lines, client

    def see(self, wanted: list[bytes]) -> None:
        """Read the next Events from both."""
        data = (line.removeprefix("data: ") for line in self._lines if line.startswith("data: "))
        assert [next(data).encode() for _ in wanted] == wanted
        found: list[bytes] = []
        while len(found) < len(wanted):
            text = self._client.recv(PATIENCE_SECONDS)
            message = json.loads(text)
            if message["type"] == "ping":
                self._client.send(json.dumps({"type": "pong", "t": message["t"]}))
            elif "." in message["type"]:
                found.append(text.encode() if isinstance(text, str) else text)
        assert found == wanted


def client(proxy: Proxied) -> httpx.Client:
    return httpx.Client(
        base_url=proxy.url, headers=BEARER, verify=proxy.trust, timeout=PATIENCE_SECONDS, trust_env=False
    )


@contextmanager
def watching(proxy: Proxied) -> Iterator[Watcher]:
    with (
        client(proxy) as http,
        http.stream("GET", "/stream") as stream,
        connect(
            f"wss://localhost:{proxy.port}/socket",
            ssl=proxy.trust,
            additional_headers=BEARER,
            proxy=None,
            close_timeout=0.5,
        ) as ws,
    ):
        assert stream.status_code == 200
        lines = stream.iter_lines()
        assert next(lines) == ": stream open"
        ws.send(json.dumps(hello("consumer")))
        ws.send(json.dumps({"type": "subscribe", "id": "all", "filter": {}}))
        while json.loads(ws.recv(PATIENCE_SECONDS))["type"] != "subscribed":
            pass
        yield Watcher(lines, ws)


def times_up(*sites: Site) -> list[int]:
    return [int(link["times_up"]) for site in sites for link in site.links()]


async def test_leaf_proxy_hub_proxy_edge(tmp_path: Path) -> None:
    with (
        chain(tmp_path, "hub leaf edge") as (hub, leaf, edge),
        running("nginx", tmp_path / "nginx", hub.port) as nginx,
        running("haproxy", tmp_path / "haproxy", hub.port) as haproxy,
    ):
        more = "max_batch_bytes = 16777216\nmax_batch_events = 10000\n"
        leaf.link(hub, url=nginx.url, more=f'ca_file = "{nginx.authority}"\n{more}')
        edge.link(hub, "pull", url=haproxy.url, more=f'ca_file = "{haproxy.authority}"\n')
        for site in (hub, leaf, edge):
            site.add(HEARTBEATS)
        start(hub, leaf, edge)
        await up(leaf, edge)
        with watching(nginx) as one, watching(haproxy) as other:
            for seq in range(3):
                leaf.running.post(*events(seq))
                for watcher in (one, other):
                    watcher.see(events(seq))
                if seq == 0:
                    await trio.sleep(IDLE_SECONDS)
                elif seq == 1:
                    # What is open goes on with the old configuration, what is opened gets the new one.
                    nginx.process.send_signal(KINDS["nginx"].reload)
                    haproxy.process.send_signal(KINDS["haproxy"].reload)
                    await trio.sleep(0.5)
            await edge.holds("s", events(0, 1, 2))
        assert times_up(leaf, edge) == [1, 1]
        await check_large(leaf, edge, nginx, haproxy)
        assert "client intended to send too large body" in (tmp_path / "nginx" / "error.log").read_text()


async def check_large(leaf: Site, edge: Site, nginx: Proxied, haproxy: Proxied) -> None:
    """See 16 MiB at once go up through a proxy that takes no more than 1 MiB, and come down through the other one."""
    batch = events(*range(4000), session="large", subject="x" * 3900)
    body = b"\n".join(batch)
    assert 15 << 20 < len(body) < 16 << 20
    answer = leaf.running.client.post("/events", content=body, headers=NDJSON)
    assert answer.json() == {"accepted": 4000}
    await until(lambda: edge.links()[0]["pulled_events"] >= 4003, edge)
    query = {"filter": '{"session":"large"}', "from": "all", "live": "0"}
    lines = edge.running.client.get("/stream", params=query).content.split(b"\n")
    assert [line.removeprefix(b"data: ") for line in lines if line.startswith(b"data: ")] == batch
    assert leaf.links()[0]["refused_events"] == 0
    with client(nginx) as refusing, client(haproxy) as taking:
        assert refusing.post("/events", content=body, headers=NDJSON).status_code == 413
        assert taking.post("/events", content=body, headers=NDJSON).json() == {"accepted": 4000}
