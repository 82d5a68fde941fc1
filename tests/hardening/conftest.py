"""What tests under attack share: a relay, a healthy pair beside the attacker, and the state to come back to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from aep_relay.hub.limits import Limits
from tests.hardening.inside import Inside, inside
from tests.hardening.pair import LATENCY_SECONDS, Pair


@pytest.fixture(scope="module")
def limits() -> Limits:
    """The limits of the module's relay; a module may have its own."""
    return Limits()


@pytest.fixture(scope="module")
def running(limits: Limits) -> Iterator[Inside]:
    with inside(limits) as relay:
        yield relay


@pytest.fixture(scope="module")
def pair(running: Inside) -> Iterator[Pair]:
    pair = Pair(running.port)
    pair.start()
    with running.leaving_nothing():
        yield pair
    pair.stop()
    assert pair.failure is None


@pytest.fixture
def relay(running: Inside, pair: Pair) -> Iterator[Inside]:
    """A relay to attack. Afterwards nobody has noticed, and nothing is left behind."""
    before = running.holdings()
    mark = pair.mark()
    yield running
    noticed = pair.since(mark)
    assert noticed.missing == 0
    assert noticed.latency_seconds < LATENCY_SECONDS
    assert running.back_at(before) == before
    assert running.log.errors == []
