"""A leaf that is emitted to all the time while its upstream is gone: what that costs in memory, in simulated time.

``python -m tests.upstream.outage --seconds 3600`` is an hour at 3,000 Events a second; the tests do a short while.
"""

from __future__ import annotations

import argparse
import gc
import resource
from dataclasses import dataclass
from functools import partial

import trio
from trio.testing import MockClock

from aep_relay.hub.limits import Limits
from aep_relay.protocol.event import decode
from tests.upstream.net import Node, net, to

MIB = 1024 * 1024
PER_SECOND = 3000
SESSIONS = 300
SEVERITIES = ("debug", "info", "info", "info", "info", "info", "info", "notice", "warning", "info")

_HEAD = b'{"aep":"0.1","id":"e%d","type":"tool.completed","time":"2026-07-03T10:15:04Z","source":"aep://host-a/agent/'
_REST = b'coder","agent":"coder","session":"s%d","seq":%d,"severity":"%b","subject":"%b"}'
_BESIDE = b'coder","agent":"coder","severity":"debug"}'


@dataclass(frozen=True)
class Sample:
    """What there was at a time."""

    unconfirmed_bytes: int
    held_bytes: int
    objects: int
    """Those that the interpreter's collector knows."""
    given_up_events: tuple[int, ...]


def emitted(number: int) -> bytes:
    """The Event of this number: most are of a session, some are beside all."""
    if number % 50 == 0:
        return _HEAD.replace(b"tool.completed", b"agent.status") % number + _BESIDE
    severity = SEVERITIES[number % 10].encode()
    return (_HEAD + _REST) % (number, number % SESSIONS, number // SESSIONS, severity, b"x" * 200)


async def endure(seconds: int, *, every: int, buffer_bytes: int, limits: Limits) -> list[Sample]:
    """Emit for so long with the upstream gone; return samples, one ``every`` so many seconds."""
    samples = []
    async with net() as net_:
        Node(net_, "hub")
        leaf = Node(
            net_, "leaf", to("hub", buffer_bytes=buffer_bytes, answer_timeout_seconds=1.0), limits=limits
        )
        (push,) = leaf.chain.pushes
        await trio.sleep(1)
        net_.stop("hub")
        for second in range(1, seconds + 1):
            for number in range((second - 1) * PER_SECOND, second * PER_SECOND):
                assert leaf.relay.ingest(decode(emitted(number))) is None
            await leaf.service.flush()
            await trio.sleep(1)
            if second % every == 0:
                ledger = push.ledger
                gc.collect()
                objects, given_up = len(gc.get_objects()), tuple(ledger.given_up_events)
                held_bytes = leaf.relay.store.size_bytes
                samples.append(Sample(ledger.unconfirmed_bytes, held_bytes, objects, given_up))
        assert push.state != "up"
    return samples


def main() -> None:
    """Do as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=int, default=3600)
    options = parser.parse_args()
    limits = Limits(buffer_events=1000, max_buffer_bytes=64 * MIB)
    work = partial(
        endure, options.seconds, every=max(1, options.seconds // 12), buffer_bytes=16 * MIB, limits=limits
    )
    for sample in trio.run(work, clock=MockClock(autojump_threshold=0)):
        print(sample)
    print(f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB resident at most")


if __name__ == "__main__":
    main()
