"""A tree of five relays comes through whatever happens to it; ``tests.upstream.tree`` does it for longer."""

from __future__ import annotations

from functools import partial

import pytest

from tests.upstream.tree import grow, simulate

SECONDS = 60


@pytest.mark.parametrize("seed", range(4))
def test_who_resumed_by_the_rules_has_all_and_nothing_else(seed: int) -> None:
    tree = simulate(partial(grow, seed, SECONDS), seed)
    assert len(tree.done) >= 3
    assert min(len(consumer.had) for consumer in tree.consumers) >= 10
