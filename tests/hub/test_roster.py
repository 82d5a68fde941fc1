"""The roster as text: written in steps, and true of the moment in which it is done."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from aep_relay.hub import claims
from aep_relay.hub.policy import Grants, Patterns
from aep_relay.protocol.framing import Framing
from tests.fakes.sink import MemorySink
from tests.hub.build import relay

if TYPE_CHECKING:
    from collections.abc import Callable

    from aep_relay.hub.peer import Peer
    from aep_relay.hub.relay import Relay

SOME = Grants(authenticated=True, sessions=Patterns(("s*",)), agents=Patterns(("coder*",)))


def claiming(hub: Relay, *sessions: str, agent: str = "coder") -> Peer:
    """A connection that claims these."""
    peer = hub.attach("test", Framing.WEBSOCKET, MemorySink())
    peer.role, peer.agent, peer.identity = "emitter", agent, {"agent": agent}
    claim(hub, peer, *sessions)
    return peer


def claim(hub: Relay, peer: Peer, *sessions: str) -> None:
    for session in sessions:
        assert hub.claim(session, peer) is None


def written(
    hub: Relay, grants: Grants | None = None, between: Callable[[int], None] = lambda step: None
) -> tuple[object, int]:
    """Return the roster, and in how many steps it was written; ``between`` is what others do after each."""
    steps = hub.claims.write_roster(grants)
    count = 1
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return json.loads(bytes(done.value)), count
        between(count)
        count += 1


def test_it_says_what_the_entries_say() -> None:
    hub = relay()
    told = claiming(hub, "s", 'of "t"')
    told.identity = {"agent": "coder", "instance": None}
    told.control, told.emits = {"accepts": ["control.cancel"]}, ["tool"]
    claiming(hub, "s", "u", agent="other")
    claiming(hub, "s", agent="coder-2")
    assert written(hub) == (hub.roster(), 1)
    assert written(hub, SOME) == (hub.roster(SOME), 1)
    assert [len(hub.roster()), len(hub.roster(SOME))] == [5, 2]


def test_nobody_has_claimed_anything() -> None:
    assert written(relay()) == ([], 1)


@pytest.mark.parametrize("grants", [None, SOME])
def test_however_long_it_is_a_step_looks_at_few_claims(
    grants: Grants | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = relay()
    for number in range(300):
        claiming(hub, f"s{number}", agent=f"coder-{number}")
    claiming(hub, *(f"s{number}" for number in range(1000)))
    looked_at = 0
    look = claims._write_on

    def counted(*arguments: object) -> int:
        nonlocal looked_at
        count = look(*arguments)  # type: ignore[arg-type]
        looked_at += count
        return count

    def between(step: int) -> None:
        nonlocal looked_at
        assert looked_at < 2 * claims.STEP_CLAIMS
        looked_at = 0

    monkeypatch.setattr(claims, "_write_on", counted)
    roster, steps = written(hub, grants, between)
    assert steps > 1300 // (2 * claims.STEP_CLAIMS)
    assert roster == hub.roster(grants)
    assert len(hub.roster(grants)) == 1300


def test_who_leaves_meanwhile_is_not_in_it_and_who_comes_is() -> None:
    hub = relay()
    first = claiming(hub, *(f"s{number}" for number in range(600)))
    second = claiming(hub, *(f"s{number}" for number in range(600, 1200)))

    def between(step: int) -> None:
        claim(hub, second, f"late-{step}")
        if step == 1:
            hub.detach(first)
            # A session that goes over to another connection was claimed all the time.
            claiming(hub, "s7", agent="heir")
        elif step == 2:
            hub.claims.release(second)
            claim(hub, second, "again")

    roster, steps = written(hub, None, between)
    assert steps > 3
    assert roster == hub.roster()
    assert {"s7", "again"} <= {entry["session"] for entry in hub.roster()}
    assert "s8" not in {entry["session"] for entry in hub.roster()}


def test_it_comes_to_an_end_however_fast_others_claim() -> None:
    hub = relay(max_claims=100_000)
    peer = claiming(hub, *(f"s{number}" for number in range(600)))

    def between(step: int) -> None:
        claim(hub, peer, *(f"step{step}-{number}" for number in range(claims.STEP_CLAIMS)))

    roster, steps = written(hub, None, between)
    assert roster == hub.roster()
    assert steps <= 4 * claims.MAX_PASSES
