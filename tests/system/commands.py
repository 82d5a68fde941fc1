"""The command line against a running relay: in this process where that is enough, in one of its own where the process
matters."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from click.testing import CliRunner, Result

from aep_relay.cli import main

TOKEN = "token-of-the-command-line"
PATIENCE_SECONDS = 30.0


def event(
    seq: int | None = 0, session: str | None = "s-1", type_: str = "progress.status", **members: Any
) -> bytes:
    """Return an Event; a member that is None is left out."""
    found = {
        "aep": "0.1",
        "id": f"{session}-{members.get('epoch', 0)}-{seq}",
        "type": type_,
        "time": "2026-07-03T10:14:00Z",
        "source": f"aep://host/{session}",
        "agent": "worker",
        "session": session,
        "seq": seq,
        **members,
    }
    return json.dumps({name: value for name, value in found.items() if value is not None}).encode()


@dataclass
class Cli:
    """The command line for one relay."""

    relay: str
    token: str | None = TOKEN
    env: dict[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        """What a shell would have exported."""
        token = {} if self.token is None else {"AEP_TOKEN": self.token}
        return {"AEP_RELAY": self.relay, **token, **self.env}

    def __call__(self, *arguments: str, stdin: bytes | None = None, code: int = 0) -> Result:
        """Run a command; its exit code has to be ``code``."""
        result = CliRunner().invoke(main, list(arguments), input=stdin, env=self.environment)
        assert result.exit_code == code, (result.output, result.stderr, result.exception)
        return result

    def json(self, *arguments: str, stdin: bytes | None = None, code: int = 0) -> list[Any]:
        """Run a command with ``--json``; return the documents it wrote."""
        return [
            json.loads(line)
            for line in self(*arguments, "--json", stdin=stdin, code=code).stdout.splitlines()
        ]

    def emit(self, *events: bytes) -> None:
        """Emit Events."""
        self("emit", "-", stdin=b"\n".join(events))

    @contextmanager
    def running(self, *arguments: str, env: Mapping[str, str] | None = None) -> Iterator[Running]:
        """Run a command in a process of its own."""
        found = Running(arguments, {**os.environ, **self.environment, **(env or {})})
        try:
            yield found
        finally:
            found.end(signal.SIGKILL)


class Running:
    """A command in its own process."""

    def __init__(self, arguments: Sequence[str], env: Mapping[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "aep_relay", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env,
            text=True,
        )

    def lines(self, count: int) -> list[str]:
        """Wait for so many lines of standard output; return them."""
        assert self.process.stdout is not None
        return [self.process.stdout.readline().rstrip("\n") for _ in range(count)]

    def told(self, words: str) -> str:
        """Wait for a line of standard error that holds ``words``; return it."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if words in line:
                return line
        raise AssertionError(f"it ended without saying {words!r}")

    def end(self, number: signal.Signals) -> int:
        """Send a signal; return the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(PATIENCE_SECONDS)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()
        return code


def until(condition: Any, seconds: float = PATIENCE_SECONDS) -> None:
    """Wait until ``condition`` holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)
