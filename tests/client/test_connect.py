"""Why a relay cannot be reached, in words."""

from __future__ import annotations

import socket

import pytest
import trio

from aep_relay.client.connect import open_stream
from aep_relay.client.errors import Unreachable
from aep_relay.client.target import parse


async def test_a_refused_connection_is_told_without_a_traceback_s_words() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(Unreachable) as caught, trio.fail_after(10):
            await open_stream(parse(url))
    assert caught.value.message == f"{url} cannot be reached: Connection refused"
