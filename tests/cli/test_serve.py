from __future__ import annotations

import signal
import socket
from pathlib import Path

import httpx
import pytest

from tests import patient
from tests.installed import QUIET, installed


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_0(number: signal.Signals, tmp_path: Path) -> None:
    with installed(tmp_path) as relay:
        port = relay.port()
        assert patient.get(f"http://127.0.0.1:{port}/healthz").json()["ok"]
        assert relay.end(number) == 0
        assert relay.record("draining")["signal"] == number.name


def test_an_address_in_use_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with installed(tmp_path, arguments=["--port", str(port)]) as relay:
            assert relay.end() == 2
            problem, advice = relay.lines
            assert problem == f"aep-relay: cannot listen: Address already in use (127.0.0.1:{port})\n"
            assert "--port" in advice


def test_an_address_of_another_machine_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    config = QUIET + "[auth]\nallow_plain_http = true\n[log]\nlevel = 'error'\n"
    with installed(tmp_path, config, ["--host", "192.0.2.1", "--port", "0"], AEP_TOKEN="abc") as relay:
        assert relay.end() == 2
        (line,) = relay.lines
        assert line.startswith("aep-relay: cannot listen: Cannot assign requested address (192.0.2.1")


def test_a_unix_socket_alone(tmp_path: Path) -> None:
    config = QUIET + '[listen]\nhost = ""\nunix = "relay.sock"\n'
    with installed(tmp_path, config, []) as relay:
        relay.record("listening")
        transport = httpx.HTTPTransport(uds=str(tmp_path / "relay.sock"))
        with httpx.Client(transport=transport) as client:
            assert client.get("http://relay/healthz").json()["ok"]
        assert (tmp_path / "relay.sock").stat().st_mode & 0o777 == 0o600
        assert relay.end(signal.SIGTERM) == 0


def test_warnings_of_the_configuration_are_logged(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("abc-secret-def\n")
    token.chmod(0o644)
    with installed(tmp_path, arguments=["--port", "0", "--token-file", str(token)]) as relay:
        assert str(token) in relay.record("configuration")["detail"]
        port = relay.port()
        url = f"http://127.0.0.1:{port}/stream?live=0&access_token="
        assert patient.get(url + "abc-secret-def").status_code == 200
        assert patient.get(url + "abc-secret-deg").status_code == 401
        assert relay.end(signal.SIGTERM) == 0
        assert "abc-secret" not in "".join(relay.lines)
