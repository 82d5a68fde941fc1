"""The short run: the same inputs every time, and all that long runs have found."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz import targets
from tests.fuzz.mutation import mutants
from tests.fuzz.targets import TARGETS

COUNTS = {
    "http": 400,
    "router": 400,
    "events": 25_000,
    "together": 6_000,
    "parameters": 40_000,
    "websocket": 300,
}
FINDINGS = sorted(path for path in (Path(__file__).parent / "findings").rglob("*") if path.is_file())


@pytest.mark.parametrize("name", TARGETS)
def test_short_run(name: str) -> None:
    target, seeds = TARGETS[name]
    for data in mutants(seeds, COUNTS[name]):
        try:
            target(data)
        except BaseException as error:
            error.add_note(f"input: {data!r}")
            raise


@pytest.mark.parametrize("path", FINDINGS, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_findings_stay_fixed(path: Path) -> None:
    TARGETS[path.parent.name][0](path.read_bytes())


def test_a_property_can_fail() -> None:
    """The oracle and the package disagree where one is made to: the properties are no tautologies."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(targets, "judge", lambda raw: {})
        with pytest.raises(AssertionError):
            targets.events(b"{}")
