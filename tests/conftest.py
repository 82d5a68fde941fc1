"""What all tests share: no connection leaves the machine, no variable of the environment leaks in."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from ipaddress import ip_address
from typing import Any

import pytest
import structlog
from hypothesis import settings

from aep_relay import logs

ALONE = ("tests/bench/", "tests/hardening/")
"""Where time is measured and thousands of sockets are open: two such tests at once would get in each other's way."""

# Time is shared with whatever else the machine does: a slow example is no failure.
settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")


def _stays_here(address: object) -> bool:
    if not isinstance(address, tuple):
        return True  # a unix socket
    host = str(address[0])
    return host == "localhost" or ip_address(host).is_loopback


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Give each file to one worker, since its tests share what they start, and all of ``ALONE`` to the same."""
    from xdist.scheduler import LoadFileScheduling

    scheduling = LoadFileScheduling(config, log)
    file_of = scheduling._split_scope
    scheduling._split_scope = lambda nodeid: "alone" if nodeid.startswith(ALONE) else file_of(nodeid)
    return scheduling


@pytest.fixture(autouse=True)
def own_logging() -> Iterator[None]:
    """Undo what a test configures of logging: what it logs must not show up in another's output."""
    before = structlog.get_config()
    yield
    structlog.reset_defaults()
    structlog.configure(**before)
    root = logging.getLogger()
    root.setLevel(logging.WARNING)
    for handler in root.handlers[:]:
        if type(handler).__module__ == logs.__name__:
            root.removeHandler(handler)


@pytest.fixture(scope="session", autouse=True)
def sealed() -> Iterator[None]:
    """Refuse every connection to another machine, and hide the AEP_ variables of the environment."""
    connect, connect_ex = socket.socket.connect, socket.socket.connect_ex

    def guarded_connect(self: socket.socket, address: Any) -> None:
        assert _stays_here(address), f"a test connects to {address}"
        connect(self, address)

    def guarded_connect_ex(self: socket.socket, address: Any) -> int:
        assert _stays_here(address), f"a test connects to {address}"
        return connect_ex(self, address)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", guarded_connect)
        patch.setattr(socket.socket, "connect_ex", guarded_connect_ex)
        for name in list(os.environ):
            if name.startswith("AEP_"):
                patch.delenv(name)
        yield
