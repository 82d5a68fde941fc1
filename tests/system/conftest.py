from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.installed import QUIET, installed
from tests.system.running import Running

if TYPE_CHECKING:
    Run = Callable[..., contextlib.AbstractContextManager[Running]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Return what runs the installed daemon on a free port: ready when entered, ended with exit code 0 when left."""

    @contextlib.contextmanager
    def run(
        config: str = "", *, port: int = 0, token: str | None = None, log: str = "info", **env: str
    ) -> Iterator[Running]:
        auth = "" if token is None else f'[auth]\ntoken = "{token}"\n'
        settings = f'{QUIET}{auth}[log]\nlevel = "{log}"\n{config}'
        with installed(tmp_path, settings, ["--port", str(port)], **env) as relay:
            running = Running(relay, relay.port(), token)
            with running.client:
                yield running
            if relay.process.poll() is None:
                assert relay.end(signal.SIGTERM) == 0, "".join(relay.lines)

    return run
