"""An outage costs bounded memory however long it lasts; ``tests.upstream.outage`` is an hour of it."""

from __future__ import annotations

from functools import partial

import trio
from trio.testing import MockClock

from aep_relay.hub.limits import Limits
from aep_relay.upstream.kept import MIN_SWEPT
from tests.upstream.outage import PER_SECOND, SESSIONS, endure

SECONDS = 8
KIB = 1024


def test_memory_does_not_grow_while_the_upstream_is_gone() -> None:
    limits = Limits(buffer_events=10, max_buffer_bytes=2048 * KIB, max_evicted_sessions=400)
    work = partial(endure, SECONDS, every=SECONDS // 4, buffer_bytes=1024 * KIB, limits=limits)
    first, *later = trio.run(work, clock=MockClock(autojump_threshold=0))
    for sample in later:
        assert sample.unconfirmed_bytes <= 1024 * KIB
        assert sample.held_bytes <= 2048 * KIB
        # Besides what is kept there may be a few places of each session whose Event was given up.
        assert sample.objects <= first.objects + SESSIONS * MIN_SWEPT + 2000
    # Each Event that is neither held nor kept has been counted, and the oldest below notice went first.
    given_up = later[-1].given_up_events
    assert 0.5 * SECONDS * PER_SECOND < sum(given_up) < SECONDS * PER_SECOND
    assert sum(given_up[:2]) > 3 * sum(given_up[2:])
