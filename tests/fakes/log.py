"""The log of a relay under test, read back as records."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from aep_relay import logs


class Log:
    """What the relay has logged, at every level."""

    def __init__(self) -> None:
        self.stream = io.StringIO()

    def records(self, event: str | None = None) -> list[dict[str, Any]]:
        found = [json.loads(line) for line in self.stream.getvalue().splitlines()]
        return [record for record in found if event is None or record["event"] == event]


@pytest.fixture(autouse=True)
def log() -> Iterator[Log]:
    log = Log()
    logs.configure("debug", "json", log.stream)
    yield log
    structlog.reset_defaults()
