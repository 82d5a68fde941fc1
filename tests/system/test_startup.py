"""What the installed daemon takes from its command line, its environment and its files, and what it refuses."""

from __future__ import annotations

import json
import re
import signal
import socket
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests import patient
from tests.installed import QUIET, installed
from tests.system.running import JSON, NDJSON, Running

if TYPE_CHECKING:
    from tests.system.conftest import Run


def event(seq: int, session: str = "s", **members: object) -> bytes:
    found = {
        "aep": "0.1",
        "id": f"{session}-{seq}",
        "type": "progress.status",
        "time": "2026-07-03T10:14:00Z",
        "source": "aep://host/agent/worker",
        "agent": "worker",
        "session": session,
        "seq": seq,
        **members,
    }
    return json.dumps(found).encode()


@pytest.mark.parametrize(
    ("arguments", "env", "told"),
    [
        (["--host", "0.0.0.0"], {}, ["listen.host: 0.0.0.0 is not loopback", "AEP_TOKEN", "token_file"]),
        ([], {"AEP_HOST": "::"}, ["listen.host: :: is not loopback", "AEP_TOKEN"]),
        (["--host", "0.0.0.0"], {"AEP_TOKEN": "abc"}, ["behind_tls_proxy = true", "allow_plain_http = true"]),
        (["--host", "192.0.2.1"], {"AEP_TOKEN": "abc"}, ["behind_tls_proxy = true"]),
        (["--port", "70000"], {}, ["--port", "65535"]),
        ([], {"AEP_BUFFER": "many"}, ["AEP_BUFFER", "whole number"]),
        (["--token-file", "/no/such/file"], {}, ["--token-file", "/no/such/file"]),
    ],
)
def test_what_it_refuses_is_one_line_that_says_what_to_do(
    arguments: list[str], env: dict[str, str], told: list[str], tmp_path: Path
) -> None:
    with installed(tmp_path, arguments=arguments, **env) as relay:
        assert relay.end() == 2
        (line,) = relay.lines
        assert line.startswith("aep-relay: ")
        assert all(part in line for part in told), line
        assert "abc" not in line


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[limit]\n", "limit: no such table; did you mean limits?"),
        ("[limits]\nbuffer_event = 1\n", "limits.buffer_event: no such setting; did you mean buffer_events?"),
        ("[limits]\nbuffer_events = 0\n", "limits.buffer_events: must be"),
        ("[listen]\nport = '8787'\nx = 1", "listen.x: no such setting"),
        ("not toml", "is not TOML"),
    ],
)
def test_a_file_it_cannot_use_is_named_by_path(text: str, told: str, tmp_path: Path) -> None:
    with installed(tmp_path, text) as relay:
        assert relay.end() == 2
        (line,) = relay.lines
        assert line.startswith(f"aep-relay: {tmp_path / 'relay.toml'}")
        assert told in line


@pytest.mark.parametrize("opened", ["behind_tls_proxy = true", "allow_plain_http = true"])
def test_off_loopback_with_a_token_and_a_declaration_it_starts(opened: str, tmp_path: Path) -> None:
    config = f"{QUIET}[auth]\n{opened}\n"
    with installed(tmp_path, config, ["--host", "0.0.0.0", "--port", "0"], AEP_TOKEN="abc") as relay:
        url = f"http://127.0.0.1:{relay.port()}/connections"
        assert patient.get(url).status_code == 401
        assert patient.get(url, headers={"Authorization": "Bearer abc"}).status_code == 200
        assert relay.end(signal.SIGTERM) == 0


def test_a_taken_port_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with installed(tmp_path, arguments=[], AEP_PORT=str(port)) as relay:
            assert relay.end() == 2
            problem, advice = relay.lines
            assert problem == f"aep-relay: cannot listen: Address already in use (127.0.0.1:{port})\n"
            assert "--port" in advice


def test_two_relays_do_not_share_a_port(run: Run, tmp_path: Path) -> None:
    with run() as first, installed(tmp_path, arguments=["--port", str(first.port)]) as second:
        assert second.end() == 2
        assert first.get("/healthz")["ok"]


def test_a_taken_operator_port_does_not_keep_it_from_starting(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        config = f"[operator]\nport = {taken.getsockname()[1]}\n"
        with installed(tmp_path, config) as relay:
            port = relay.port()
            assert (
                relay.record("operator plane cannot listen; the relay goes on without it")["level"]
                == "warning"
            )
            assert patient.get(f"http://127.0.0.1:{port}/healthz").status_code == 200
            assert relay.end(signal.SIGTERM) == 0


def test_the_environment_is_over_the_file_and_flags_are_over_the_environment(tmp_path: Path) -> None:
    config = QUIET + '[listen]\nhost = "192.0.2.1"\nport = 1\n[limits]\nbuffer_events = 5\n'
    with installed(
        tmp_path, config, ["--port", "0"], AEP_HOST="localhost", AEP_PORT="2", AEP_BUFFER="7"
    ) as relay:
        port = relay.port()
        assert port > 2
        answer = patient.get(f"http://127.0.0.1:{port}/events").json()
        assert answer["capabilities"]["replay"]["buffer"] == 7
        assert relay.end(signal.SIGTERM) == 0


def test_the_token_file_is_over_the_variable(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("from-the-file\r\n")
    token.chmod(0o600)
    arguments = ["--port", "0", "--token-file", str(token)]
    with installed(tmp_path, arguments=arguments, AEP_TOKEN="from-the-environment") as relay:
        url = f"http://127.0.0.1:{relay.port()}/connections"
        for given, status in (
            ("from-the-file", 200),
            ("from-the-environment", 401),
            ("from-the-file\r", 401),
        ):
            if "\r" not in given:
                assert patient.get(url, headers={"Authorization": f"Bearer {given}"}).status_code == status
            assert patient.get(url, params={"access_token": given}).status_code == status
        assert relay.end(signal.SIGTERM) == 0


def _status(relay: Running, content: bytes, kind: dict[str, str]) -> int:
    return relay.client.post("/events", content=content, headers=kind).status_code


def test_the_variables_of_relays_in_the_field(run: Run) -> None:
    variables = {
        "AEP_TOKEN": "of-the-environment",
        "AEP_BUFFER": "3",
        "AEP_MAX_SESSIONS": "2",
        "AEP_MAX_BODY": "2000",
        "AEP_MAX_BATCH": "4",
        "AEP_MAX_FROM": "1",
    }
    with run(**variables) as relay:
        assert relay.client.get("/connections").status_code == 401
        for headers in (relay.bearer, relay.client.headers):
            headers["Authorization"] = "Bearer of-the-environment"
        assert relay.get("/events")["capabilities"]["replay"] == {"buffer": 3, "all": True}
        assert _status(relay, b"\n".join(event(seq) for seq in range(4)), NDJSON) == 202
        assert _status(relay, b"\n".join(event(seq) for seq in range(5)), NDJSON) == 413
        assert _status(relay, event(9, subject="x" * 2000), JSON) == 413
        assert relay.curl(from_="all", live="0").count(b"\ndata: ") == 3
        for number in range(3):
            relay.post(event(0, f"t-{number}"))
        assert relay.get("/healthz")["sessions"] == 2
        points = [{"session": "t-1", "seq": 0}, {"session": "t-2", "seq": 0}]
        assert (
            relay.client.get("/stream", params={"live": "0", "from": json.dumps(points[:1])}).status_code
            == 200
        )
        assert (
            relay.client.get("/stream", params={"live": "0", "from": json.dumps(points)}).status_code == 400
        )


def test_no_more_connections_than_the_limit_and_the_next_one_is_told(run: Run) -> None:
    with run("[limits]\nmax_connections = 20\n") as relay, ExitStack() as stack:
        socks = []
        for _ in range(60):
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", relay.port), timeout=20))
            sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            socks.append(sock)
        refused = 0
        for sock in socks:
            answer = sock.recv(65536)
            assert re.match(rb"HTTP/1.1 (200|429) ", answer)
            refused += answer.startswith(b"HTTP/1.1 429 ")
            assert (b'"limit-exceeded"' in answer) is answer.startswith(b"HTTP/1.1 429 ")
            assert (b"Access-Control-Allow-Origin: *" in answer) is answer.startswith(b"HTTP/1.1 429 ")
        assert refused == 40
