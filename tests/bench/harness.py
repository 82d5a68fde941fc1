"""What scenarios share: the run's settings, and arms measured in turn so that noise falls on all alike."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from . import machine
from .process import Measured

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

    def measure(self, arms: Mapping[str, tuple[Arm, int]]) -> dict[str, Runs]:
        """Run each arm once unmeasured, then all in turn ``repeat`` times; each comes with its units."""
        for arm, _ in arms.values():
            arm()
        runs: dict[str, list[Measured]] = {name: [] for name in arms}
        for _ in range(self.repeat):
            for name, (arm, _) in arms.items():
                runs[name].append(arm())
        return {name: Runs(tuple(measured), arms[name][1]) for name, measured in runs.items()}


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
            "units_per_second": round(self.units_per_second),
            "server_busy": round(self.busy, 3),
            "server_waited": round(self.waited, 3),
            "units_per_run": self.units,
        }
