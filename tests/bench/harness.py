"""What scenarios share: the run's settings, and arms measured in turn so that noise falls on all alike."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from . import machine, pace
from .process import Measured
from .report import Yardstick

Arm = Callable[[], Measured]


@dataclass(frozen=True, slots=True)
class Bench:
    """The settings of a run: how often each arm is measured, whether in short, on which cores, and how many
    files it may open.
    """

    repeat: int
    quick: bool
    server_core: machine.Core
    load_core: machine.Core
    descriptors: int

    def sized(self, full: int, quick: int) -> int:
        """The size of a load in this run."""
        return quick if self.quick else full

    def measure(
        self, arms: Mapping[str, tuple[Arm, int]], rounds: int | None = None, turns: int = 1
    ) -> dict[str, Runs]:
        """Run each arm in ``rounds``, ``repeat`` by default, after one more unmeasured; each comes with its units.

        In a round each arm has ``turns``, right after the others' and in reverse order every other time: what
        is compared is compared within a round, and no arm is always the first. One run is all turns of a
        round: the shorter a turn, the less can the speed of the machine change between it and what it is
        compared with.
        """
        orders = itertools.cycle([list(arms), list(arms)[::-1]])

        def one_round() -> dict[str, Measured]:
            parts: dict[str, list[Measured]] = {name: [] for name in arms}
            for name in itertools.chain(*itertools.islice(orders, turns)):
                parts[name].append(arms[name][0]())
            return {name: Measured.together(measured) for name, measured in parts.items()}

        one_round()
        found = [one_round() for _ in range(self.repeat if rounds is None else rounds)]
        return {
            name: Runs(tuple(runs[name] for runs in found), units * turns)
            for name, (_, units) in arms.items()
        }


def differences(more: Sequence[float], less: Sequence[float]) -> list[float]:
    """What one arm costs beyond another, round by round."""
    return [one - other for one, other in zip(more, less, strict=True)]


@dataclass(frozen=True, slots=True)
class Runs:
    """The repeated measurements of one arm, each of ``units`` of work."""

    measured: tuple[Measured, ...]
    units: int

    @property
    def all_cpu_us(self) -> list[float]:
        """CPU microseconds a unit, run by run."""
        return [run.cpu_us_per(self.units) for run in self.measured]

    @property
    def cpu_us(self) -> float:
        """CPU microseconds a unit: the median of the runs."""
        return statistics.median(self.all_cpu_us)

    @property
    def all_decode_us(self) -> list[float]:
        """What a bare decode took beside each run, in microseconds."""
        return [run.decode_us for run in self.measured]

    @property
    def pace(self) -> Yardstick:
        """How fast the machine was, run by run."""
        return pace.yardstick(self.all_decode_us)

    def yardstick(
        self, name: str, *, reference: float | None = None, limit: float | None = None
    ) -> Yardstick:
        """The CPU of these runs as what another arm, run in the same rounds, is compared with."""
        return Yardstick(name, self.all_cpu_us, reference, limit)

    @property
    def units_per_second(self) -> float:
        """Throughput by the clock: the median of the runs."""
        return statistics.median(self.units / run.wall_seconds for run in self.measured)

    @property
    def busy(self) -> float:
        """The share of the clock the server spent on the CPU; near 1 says that the load saturated it."""
        return statistics.median(run.cpu_seconds / run.wall_seconds for run in self.measured)

    @property
    def waited(self) -> float:
        """The share of the clock the server was ready while something else held its core."""
        return statistics.median(run.waited_seconds / run.wall_seconds for run in self.measured)

    def details(self) -> dict[str, object]:
        """The figures behind the median, for the JSON."""
        return {
            "runs_cpu_us": [round(value, 4) for value in self.all_cpu_us],
            "runs_decode_us": [round(value, 4) for value in self.all_decode_us],
            "units_per_second": round(self.units_per_second),
            "server_busy": round(self.busy, 3),
            "server_waited": round(self.waited, 3),
            "units_per_run": self.units,
        }
