"""A standard error that nobody reads holds up neither the relay nor its end, and what can still go out does."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from aep_relay.stderr import MAX_HELD_BYTES
from tests import patient
from tests.bindings.served import hello
from tests.installed import QUIET
from tests.ports import free_port
from tests.stuck import StuckPipe
from tests.system.conftest import wait_for

PATIENCE_SECONDS = 30.0


@pytest.fixture
def stuck() -> Iterator[StuckPipe]:
    with StuckPipe() as pipe:
        yield pipe


@contextmanager
def running(stderr: int, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    call = [sys.executable, "-m", "aep_relay", *words]
    with subprocess.Popen(call, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "relay.toml"
    path.write_text(QUIET)
    return path


def records(pipe: StuckPipe) -> list[dict[str, Any]]:
    return [json.loads(line) for line in pipe.rest().splitlines()]


def test_a_relay_whose_log_nobody_reads(stuck: StuckPipe, config: Path) -> None:
    port = free_port()
    url = f"ws://127.0.0.1:{port}/socket"
    with running(stuck.writing, "serve", "--config", str(config), "--port", str(port)) as relay:
        wait_for(port)
        # Each is logged with its agent's name, whose characters are escaped.
        count = MAX_HELD_BYTES // 20_000 + 10
        for _ in range(count):
            with patient.connect(url) as client:
                client.send(json.dumps(hello(agent="\U000e0001" * 2000)))
                assert json.loads(client.recv(PATIENCE_SECONDS))["type"] == "hello"
        relay.send_signal(signal.SIGTERM)
        found = records(stuck)
        assert relay.wait(PATIENCE_SECONDS) == 0
    assert found[0]["event"] == "listening"
    (loss,) = [at for at, record in enumerate(found) if record["event"] == "log records lost"]
    opened = [record["connection"] for record in found[:loss] if record["event"] == "connection opened"]
    assert opened == list(range(1, len(opened) + 1))
    assert found[loss]["records"] > 0
    assert len(found) - 1 + found[loss]["records"] == 2 * count + len({"listening", "draining", "stopped"})


def test_the_end_is_hardly_held_up(stuck: StuckPipe, config: Path) -> None:
    """By one signal, by two, and by what keeps it from starting: all at once, since each waits for a second."""
    ports = [free_port(), free_port()]
    wrong = config.with_name("wrong.toml")
    wrong.write_text("[listen]\nprt = 1\n")
    with ExitStack() as stack:
        at_port = [["serve", "--config", str(config), "--port", str(port)] for port in ports]
        ending = [stack.enter_context(running(stuck.writing, *call)) for call in at_port]
        for port in ports:
            wait_for(port)
        taken = ["--config", str(config), "--port", str(ports[0])]
        calls = [["serve", *taken], ["run", *taken, "--", "true"], ["serve", "--config", str(wrong)]]
        failing = [stack.enter_context(running(stuck.writing, *call)) for call in calls]
        assert [relay.wait(PATIENCE_SECONDS) for relay in failing] == [2, 2, 2]
        stack.enter_context(socket.create_connection(("127.0.0.1", ports[1])))
        for relay in ending:
            relay.send_signal(signal.SIGTERM)
        ending[1].send_signal(signal.SIGINT)
        assert ending[0].wait(PATIENCE_SECONDS) == 0
        assert ending[1].wait(PATIENCE_SECONDS) in (0, 130, 143)


def test_why_it_cannot_start_comes_last(stuck: StuckPipe, config: Path) -> None:
    config.write_text(f'{QUIET}[auth]\ntoken = "{"t" * 32}"\nallow_plain_http = true\n')
    config.chmod(0o600)
    with socket.create_server(("0.0.0.0", 0)) as taken:
        port = str(taken.getsockname()[1])
        with running(
            stuck.writing, "serve", "--config", str(config), "--host", "0.0.0.0", "--port", port
        ) as relay:
            warning, problem, advice = stuck.rest().decode().splitlines()
            assert relay.wait(PATIENCE_SECONDS) == 2
    assert json.loads(warning)["event"] == "configuration"
    assert problem.startswith("aep-relay: cannot listen: ")
    assert advice.startswith("  what next: ")
