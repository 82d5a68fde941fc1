"""SIGHUP and the installed daemon: what changes, what goes on, what is refused."""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest
from joserfc import jwk
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection

from tests import patient
from tests.bindings.served import JSON, event, hello
from tests.installed import QUIET, Installed, installed


def token(name: str, *grants: str, **more: str) -> str:
    """The lines for a token whose text is ``secret-of-NAME``."""
    digest = sha256(f"secret-of-{name}".encode()).hexdigest()
    lines = [f'name = "{name}"', f'sha256 = "{digest}"', f"grants = {json.dumps(grants)}"]
    return "\n".join(["[[tokens]]", *lines, *(f"{key} = {value}" for key, value in more.items()), ""])


def bearer(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer secret-of-{name}"}


class Client:
    """Clients of one relay, and its configuration file."""

    def __init__(self, relay: Installed, folder: Path, stack: contextlib.ExitStack) -> None:
        self.relay, self.file, self.stack = relay, folder / "relay.toml", stack
        self.port = relay.port()
        self.http = stack.enter_context(httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=30))

    def hang_up(self, config: str) -> None:
        self.file.write_text(config)
        self.relay.process.send_signal(signal.SIGHUP)

    def reload(self, config: str) -> dict[str, Any]:
        """Have another configuration taken over; return what the relay says of it."""
        self.hang_up(config)
        return self.relay.record("configuration reloaded")

    def post(self, name: str, seq: int = 0, session: str = "s") -> int:
        return self.http.post(
            "/events", content=event(seq, session), headers={**JSON, **bearer(name)}
        ).status_code

    def stream(self, name: str) -> Iterator[str]:
        """Open a stream and return its lines that say something, from the first Event on."""
        response = self.stack.enter_context(self.http.stream("GET", "/stream", headers=bearer(name)))
        assert response.status_code == 200
        lines = (line for line in response.iter_lines() if line.startswith(("data: ", ": ")))
        assert next(lines) == ": stream open"
        return lines

    def socket(self, name: str, **identity: object) -> ClientConnection:
        url = f"ws://127.0.0.1:{self.port}/socket"
        socket = self.stack.enter_context(patient.connect(url, additional_headers=bearer(name), proxy=None))
        greeting = hello("both")
        greeting["identity"] = {"agent": "tester", **identity}
        socket.send(json.dumps(greeting))
        return socket


@contextlib.contextmanager
def running(folder: Path, config: str, **env: str) -> Iterator[Client]:
    with installed(folder, config, **env) as relay, contextlib.ExitStack() as stack:
        yield Client(relay, folder, stack)
        stack.close()
        assert relay.end(signal.SIGTERM) == 0


def seqs(lines: Iterator[str], count: int) -> list[int]:
    return [json.loads(next(lines).removeprefix("data: "))["seq"] for _ in range(count)]


def ended(socket: ClientConnection) -> tuple[str, int | None]:
    """Return the reason in the closing frame and the close code."""
    reason = ""
    try:
        while True:
            message = json.loads(socket.recv(timeout=30))
            reason = message.get("reason", reason)
    except ConnectionClosed as closed:
        return reason, None if closed.rcvd is None else closed.rcvd.code


def test_tokens_are_replaced_and_streams_go_on(tmp_path: Path) -> None:
    both = QUIET + token("old", "emit", "consume") + token("kept", "emit", "consume")
    with running(tmp_path, both) as client:
        old, kept = client.stream("old"), client.stream("kept")
        old_socket, kept_socket = client.socket("old"), client.socket("kept")
        assert json.loads(kept_socket.recv())["type"] == "hello"
        assert client.post("old", 0) == 202
        record = client.reload(
            QUIET + token("kept", "emit", "consume", max_connections="9") + token("new", "emit")
        )
        assert (record["changed"], record["needs_restart"], record["connections_ended"]) == (
            ["tokens"],
            [],
            2,
        )
        assert seqs(old, 1) == [0]
        assert list(old) == [": closing token-removed"]
        assert ended(old_socket) == ("token-removed", 1008)
        assert [client.post(name, 1) for name in ("old", "kept", "new")] == [401, 202, 202]
        assert seqs(kept, 3) == [0, 1, 1]
        kept_socket.send(json.dumps({"type": "ping", "t": 1}))
        assert json.loads(kept_socket.recv()) == {"type": "pong", "t": 1}
        log = "".join(client.relay.lines)
        assert "secret-of" not in log


def test_a_changed_token_ends_its_connections(tmp_path: Path) -> None:
    with running(tmp_path, QUIET + token("t", "consume")) as client:
        stream, socket = client.stream("t"), client.socket("t")
        client.reload(QUIET + token("t", "consume", agents='["a"]'))
        assert list(stream) == [": closing token-changed"]
        assert ended(socket) == ("token-changed", 1008)
        client.stream("t")


@pytest.mark.parametrize(
    ("bad", "detail"),
    [
        ("[limits]\nmax_sesions = 1\n", "limits.max_sesions: no such setting; did you mean max_sessions?"),
        ("[[tokens]]\nname = 'x'\n", "tokens[0].grants: is missing"),
        ("[auth]\ntoken_file = 'no-such-file'\n", "cannot be read"),
        ("[cards]\npolicy = 'check'\nkeys = 'relay.toml'\n", "cards.keys: "),
        ("[listen\n", "is not TOML"),
    ],
)
def test_a_bad_configuration_changes_nothing(bad: str, detail: str, tmp_path: Path) -> None:
    with running(tmp_path, QUIET + token("t", "emit", "consume")) as client:
        stream = client.stream("t")
        client.hang_up(QUIET + "[log]\nlevel = 'error'\n" + bad)
        record = client.relay.record("configuration refused; the old one stays in force")
        assert detail in record["detail"]
        assert record["level"] == "error"
        assert client.post("t", 5) == 202
        assert seqs(stream, 1) == [5]
        client.file.unlink()
        client.relay.process.send_signal(signal.SIGHUP)
        assert (
            "cannot be read"
            in client.relay.record("configuration refused; the old one stays in force")["detail"]
        )
        assert client.post("t", 6) == 202
        client.reload(QUIET + token("u", "emit"))
        assert [client.post(name) for name in ("t", "u")] == [401, 202]


def test_limits_and_log_level_change(tmp_path: Path) -> None:
    tokens = token("t", "emit", "consume")
    with running(tmp_path, QUIET + tokens) as client:
        batch = b"\n".join(event(seq) for seq in range(3))
        headers = {**JSON, "Content-Type": "application/x-ndjson", **bearer("t")}
        assert client.http.post("/events", content=batch, headers=headers).status_code == 202
        record = client.reload(
            QUIET + "[log]\nlevel = 'debug'\n[limits]\nmax_batch_events = 2\nbuffer_events = 7\n" + tokens
        )
        assert record["changed"] == ["limits.buffer_events", "limits.max_batch_events", "log.level"]
        assert client.http.post("/events", content=batch, headers=headers).status_code == 413
        assert client.http.get("/events").json()["capabilities"]["replay"]["buffer"] == 7
        client.hang_up(QUIET + "[log]\nlevel = 'error'\n" + tokens)
        client.stream("t").close()  # type: ignore[attr-defined]
        client.hang_up("[limits]\nx = 1\n")
        client.relay.record("configuration refused; the old one stays in force")


def test_what_needs_a_restart_is_named_and_stays(tmp_path: Path) -> None:
    with running(tmp_path, QUIET + token("t", "emit")) as client:
        changed = '[listen]\nport = 1\nunix = "other.sock"\n[operator]\nenabled = true\nport = 0\n'
        for _ in range(2):
            record = client.reload(changed + token("t", "emit"))
            assert record["needs_restart"] == ["listen.unix", "operator.enabled", "operator.port"]
            assert client.post("t") == 202
        assert not (tmp_path / "other.sock").exists()


def test_a_relay_that_is_open_to_the_network_keeps_a_token(tmp_path: Path) -> None:
    config = QUIET + "[listen]\nhost = '0.0.0.0'\n[auth]\nallow_plain_http = true\n"
    with running(tmp_path, config + token("t", "emit")) as client:
        client.hang_up(QUIET)
        record = client.relay.record("configuration refused; the old one stays in force")
        assert record["detail"].startswith("listen.host: 0.0.0.0 is not loopback")
        assert client.http.post("/events", content=event(), headers=JSON).status_code == 401
        assert client.post("t") == 202


def test_a_token_file_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first-secret\n")
    file.chmod(0o600)
    config = QUIET + "[auth]\ntoken_file = 'token'\n"
    with running(tmp_path, config) as client:

        def status(secret: str) -> int:
            return client.http.get("/connections", headers={"Authorization": f"Bearer {secret}"}).status_code

        assert [status("first-secret"), status("second-secret")] == [200, 401]
        file.write_text("second-secret\n")
        record = client.reload(config)
        assert record["changed"] == ["auth.token"]
        assert [status("first-secret"), status("second-secret")] == [401, 200]
        log = "".join(client.relay.lines)
        assert "first-secret" not in log
        assert "second-secret" not in log


def test_cards_are_asked_for_from_then_on(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    key = jwk.OKPKey.generate_key("Ed25519", {"kid": "k"})
    keys.write_text(json.dumps({"keys": [key.as_dict(private=False)]}))
    tokens = token("t", "emit", "consume")
    with running(tmp_path, QUIET + tokens) as client:
        before = client.socket("t", card="no card")
        assert json.loads(before.recv())["type"] == "hello"
        client.reload(QUIET + "[cards]\npolicy = 'require'\nkeys = 'keys.json'\n" + tokens)
        after = client.socket("t", card="no card")
        assert json.loads(after.recv())["code"] == "unauthorized"
        assert ended(after) == ("", 1008)
        before.send(json.dumps({"type": "ping", "t": 1}))
        assert json.loads(before.recv()) == {"type": "pong", "t": 1}


def test_a_relay_begins_to_want_tokens(tmp_path: Path) -> None:
    with running(tmp_path, QUIET) as client:
        stream, socket = client.stream("nobody"), client.socket("nobody")
        record = client.reload(QUIET + token("t", "emit"))
        assert record["connections_ended"] == 2
        assert list(stream) == [": closing token-required"]
        assert ended(socket) == ("token-required", 1008)
        assert [client.post("nobody"), client.post("t")] == [401, 202]


def test_an_expired_token_ends_its_connections(tmp_path: Path) -> None:
    with running(tmp_path, QUIET + token("t", "emit", "consume") + token("u", "consume")) as client:
        stream, socket, other = client.stream("t"), client.socket("t"), client.stream("u")
        expired = token("t", "emit", "consume", expires="2020-01-01T00:00:00Z")
        record = client.reload(QUIET + expired + token("u", "consume") + token("v", "emit"))
        assert record["connections_ended"] == 0
        assert list(stream) == [": closing token-expired"]
        assert ended(socket) == ("token-expired", 1008)
        assert [client.post("t"), client.post("v")] == [401, 202]
        assert seqs(other, 1) == [0]
