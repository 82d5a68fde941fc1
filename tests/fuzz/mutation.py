"""New inputs from old ones, the same for the same seed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from tests.fuzz.seeds import WORDS

MAX_BYTES = 4096


def mutants(seeds: Sequence[bytes], count: int, seed: int = 0) -> Iterator[bytes]:
    """Yield ``count`` inputs: the seeds first, then what becomes of them."""
    randomness = random.Random(seed)  # noqa: S311  # nothing secret
    pool = list(seeds)
    yield from pool[:count]
    for _ in range(count - len(seeds)):
        data = bytearray(randomness.choice(pool))
        for _ in range(randomness.choice((1, 1, 2, 3, 8))):
            _mutate(data, pool, randomness)
        found = bytes(data[:MAX_BYTES])
        if randomness.random() < 0.1:
            pool.append(found)
        yield found


def _mutate(data: bytearray, pool: Sequence[bytes], randomness: random.Random) -> None:
    at = randomness.randint(0, len(data))
    end = min(len(data), at + randomness.choice((0, 1, 1, 2, 4, 16, 64)))
    kind = randomness.randrange(6)
    if kind == 0:
        data[at:end] = randomness.choice(WORDS)
    elif kind == 1:
        data[at:at] = randomness.choice(WORDS)
    elif kind == 2:
        del data[at:end]
    elif kind == 3:
        data[at:end] = randomness.randbytes(end - at)
    elif kind == 4:
        data[at:at] = data[at:end] * randomness.choice((1, 2, 30))
    else:
        other = randomness.choice(pool)
        cut = randomness.randint(0, len(other))
        data[at:end] = other[cut : cut + randomness.choice((4, 32, 400))]
