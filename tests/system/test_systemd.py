"""The installed daemon under a service manager: what it tells it, and the sockets it takes from it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection

from tests import patient
from tests.bindings.served import JSON, event, hello
from tests.fakes.manager import Notified
from tests.installed import QUIET, installed
from tests.ports import free_port

ACTIVATE = shutil.which("systemd-socket-activate")
PATIENCE_SECONDS = 30.0


def test_the_manager_hears_of_every_state_in_order(tmp_path: Path) -> None:
    notified = Notified(str(tmp_path / "notify"))
    path = tmp_path / "also.sock"
    config = QUIET + f'[listen]\nalso = ["127.0.0.1:0", "unix:{path}"]\n'
    with notified.socket, installed(tmp_path, config, NOTIFY_SOCKET=notified.address) as relay:
        ready = notified.message("READY=1")
        # Only now is the log looked at: whoever was told may connect at once.
        addresses = relay.record("listening")["addresses"]
        assert addresses[2] == f"unix:{path}"
        for address in addresses[:2]:
            socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2]))).close()
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
        listening = f"listening on {', '.join(addresses)}"
        assert ready == ["READY=1", f"STATUS={listening}; 0 connections, 0 sessions held"]

        relay.process.send_signal(signal.SIGHUP)
        _, usec = notified.message("RELOADING=1")
        assert abs(time.monotonic_ns() // 1000 - int(usec.removeprefix("MONOTONIC_USEC="))) < 30_000_000
        assert notified.message("READY=1")[1].startswith(f"STATUS={listening}")

        (tmp_path / "relay.toml").write_text("[listen\n")
        relay.process.send_signal(signal.SIGHUP)
        notified.message("RELOADING=1")
        assert notified.message("READY=1")[1].endswith("; the configuration read last was refused")

        assert relay.end(signal.SIGTERM) == 0
        assert notified.message("STOPPING=1")[1].startswith("STATUS=draining; ")
        assert notified.messages() == []


def test_a_process_that_does_not_run_does_not_feed_the_watchdog(tmp_path: Path) -> None:
    notified = Notified(str(tmp_path / "notify"))
    watchdog = {"NOTIFY_SOCKET": notified.address, "WATCHDOG_USEC": "100000"}
    with notified.socket, installed(tmp_path, **watchdog) as relay:
        notified.message("READY=1")
        for _ in range(3):
            assert notified.message("WATCHDOG=1")
        relay.process.send_signal(signal.SIGSTOP)
        _, status = os.waitpid(relay.process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        notified.messages()
        time.sleep(0.3)
        assert notified.messages() == []
        relay.process.send_signal(signal.SIGCONT)
        assert notified.message("WATCHDOG=1")
        assert relay.end(signal.SIGTERM) == 0


@pytest.mark.skipif(ACTIVATE is None, reason="there is no systemd-socket-activate")
def test_sockets_that_systemd_passes_are_listened_on(tmp_path: Path) -> None:
    port, path = free_port(), tmp_path / "relay.sock"
    config = tmp_path / "relay.toml"
    config.write_text(QUIET + "[listen]\nport = 1\n")
    serve = [sys.executable, "-m", "aep_relay", "serve", "--config", str(config)]
    command = [str(ACTIVATE), "-l", f"127.0.0.1:{port}", "-l", str(path), *serve]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            for expected in (f"127.0.0.1:{port}", str(path)):
                assert expected in next(process.stderr)
            over_unix = httpx.HTTPTransport(uds=str(path))
            with httpx.Client(timeout=PATIENCE_SECONDS) as tcp, httpx.Client(transport=over_unix) as unix:
                assert tcp.get(f"http://127.0.0.1:{port}/healthz").json()["ok"]
                assert unix.get("http://relay/healthz").json()["ok"]
        finally:
            process.send_signal(signal.SIGTERM)
            log = process.stderr.read()
    assert process.returncode == 0, log
    records = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    (addresses,) = [record["addresses"] for record in records if record["event"] == "listening"]
    assert addresses == [f"127.0.0.1:{port}", f"unix:{path}"]
    # Its path is the manager's to remove.
    assert path.exists()


@contextmanager
def activated(folder: Path, listener: socket.socket) -> Iterator[tuple[subprocess.Popen[bytes], Notified]]:
    """Run a relay that is passed ``listener`` as a service manager would."""
    notified = Notified(str(folder / "notify"))
    serve = [sys.executable, "-m", "aep_relay", "serve", "--config", str(folder / "relay.toml")]
    script = f'LISTEN_PID=$$ LISTEN_FDS=1 NOTIFY_SOCKET="{notified.address}" exec "$@" 3<&{listener.fileno()}'
    process = subprocess.Popen(
        ["bash", "-c", script, "bash", *serve], pass_fds=[listener.fileno()], stderr=subprocess.DEVNULL
    )
    try:
        notified.message("READY=1")
        yield process, notified
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_SECONDS) == 0
    finally:
        notified.socket.close()
        (folder / "notify").unlink()
        if process.poll() is None:
            process.kill()
            process.wait()


def test_a_passed_socket_off_loopback_needs_a_token(tmp_path: Path) -> None:
    config = tmp_path / "relay.toml"
    config.write_text(QUIET)
    serve = [sys.executable, "-m", "aep_relay", "serve", "--config", str(config)]
    with socket.create_server(("0.0.0.0", 0)) as listener:
        script = f'LISTEN_PID=$$ LISTEN_FDS=1 exec "$@" 3<&{listener.fileno()}'
        done = subprocess.run(
            ["bash", "-c", script, "bash", *serve],
            pass_fds=[listener.fileno()],
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_SECONDS,
        )
        assert done.returncode == 2
        assert done.stderr.startswith("aep-relay: inherited socket: 0.0.0.0 is not loopback")

        config.write_text(QUIET + '[auth]\ntoken = "abc"\nallow_plain_http = true\n')
        config.chmod(0o600)
        with activated(tmp_path, listener) as (process, notified):
            url = f"http://127.0.0.1:{listener.getsockname()[1]}/connections"
            config.write_text(QUIET)
            process.send_signal(signal.SIGHUP)
            notified.message("RELOADING=1")
            assert notified.message("READY=1")[1].endswith("; the configuration read last was refused")
            assert patient.get(url).status_code == 401
            assert patient.get(url, headers={"Authorization": "Bearer abc"}).status_code == 200


class Load:
    """Emitters that post without a pause, each request on a connection of its own."""

    def __init__(self, port: int) -> None:
        self.outcomes: Counter[object] = Counter()
        self._port = port
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._post, args=(number,)) for number in range(4)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def until(self, accepted: int) -> None:
        """Wait until so many have been accepted."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self.outcomes[202] < accepted:
            assert time.monotonic() < deadline, self.outcomes
            time.sleep(0.01)

    def _post(self, number: int) -> None:
        seq = 0
        while not self._over.is_set():
            connection = HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE_SECONDS)
            try:
                connection.request("POST", "/events", event(seq, f"s{number}"), JSON)
                self.outcomes[connection.getresponse().status] += 1
            except (OSError, HTTPException) as error:
                self.outcomes[repr(error)] += 1
            finally:
                connection.close()
            seq += 1


def follow(socket: ClientConnection) -> tuple[list[str], int | None]:
    """Read to the end; return the reasons of closing frames, and the close code."""
    reasons = []
    try:
        for text in socket:
            frame = json.loads(text)
            if frame["type"] == "closing":
                reasons.append(frame["reason"])
        code = socket.close_code
    except ConnectionClosed as closed:
        code = None if closed.rcvd is None else closed.rcvd.code
    return reasons, code


def test_a_restart_under_load_refuses_no_connection(tmp_path: Path) -> None:
    (tmp_path / "relay.toml").write_text(QUIET)
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener, ExitStack() as stack:
        port = listener.getsockname()[1]
        ends: list[object] = []

        def consume_socket() -> None:
            with patient.connect(f"ws://127.0.0.1:{port}/socket", proxy=None) as consumer:
                consumer.send(json.dumps(hello("consumer")))
                consumer.send(json.dumps({"type": "subscribe", "id": "all", "filter": {}}))
                ready.wait(PATIENCE_SECONDS)
                ends.append(follow(consumer))

        def consume_stream() -> None:
            with httpx.stream("GET", f"http://127.0.0.1:{port}/stream", timeout=PATIENCE_SECONDS) as stream:
                ready.wait(PATIENCE_SECONDS)
                ends.append([line for line in stream.iter_lines() if line.startswith(":")][-1])

        ready = threading.Barrier(7)
        threads = [
            threading.Thread(target=consume) for consume in (consume_socket, consume_stream) for _ in range(3)
        ]
        with activated(tmp_path, listener):
            for thread in threads:
                thread.start()
            ready.wait(PATIENCE_SECONDS)
            load = stack.enter_context(Load(port))
            load.until(100)
        before = load.outcomes[202]
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
        with activated(tmp_path, listener):
            load.until(before + 100)
            stack.close()
    assert sorted(ends, key=str) == [(["shutdown"], 1001)] * 3 + [": closing shutdown"] * 3
    assert set(load.outcomes) <= {202, 503}, load.outcomes
