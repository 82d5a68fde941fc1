"""What the benchmark found: figures against targets and yardsticks, as a table and as JSON."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum


class Verdict(Enum):
    """Whether a figure is where it should be."""

    PASS = "pass"
    # The machine is slower than the one the target was set on, and the ratio to the yardstick is met.
    PASS_BY_RATIO = "pass (ratio)"
    MISS = "MISS"
    # Shown for what it says, with no target.
    NONE = "-"


@dataclass(frozen=True, slots=True)
class Yardstick:
    """Something else measured in the same run of the benchmark: one value beside each of the row's ``runs``.

    ``reference`` is its value on the machine the target was set on, if that is known: where this machine is
    slower, the figure may be the same multiple of the yardstick as the target is of the reference. ``limit``
    is the ratio of figure to yardstick that must hold whatever the machine.
    """

    name: str
    runs: Sequence[float]
    reference: float | None = None
    limit: float | None = None

    @property
    def value(self) -> float:
        """The median of the runs."""
        return statistics.median(self.runs)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: the median of ``runs``, its unit and its target; ``details`` go to the JSON only.

    The speed of a shared machine changes within seconds, so each run is compared with what was measured
    beside it: a ratio is the median of the ratios run by run. Raises ``ValueError`` if a yardstick has not
    as many runs as the figure.
    """

    scenario: str
    figure: str
    unit: str
    runs: Sequence[float]
    target: float | None = None
    yardsticks: Sequence[Yardstick] = ()
    details: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for yardstick in self.yardsticks:
            if len(yardstick.runs) != len(self.runs):
                raise ValueError(f"{self.figure}: {yardstick.name} was not measured beside each run")

    @property
    def value(self) -> float:
        """The median of the runs."""
        return statistics.median(self.runs)

    def ratio(self, yardstick: Yardstick) -> float | None:
        """The figure as a multiple of ``yardstick``; ``None`` where that says nothing, next to zero or less."""
        pairs = zip(self.runs, yardstick.runs, strict=True)
        ratio = statistics.median(run / beside if beside > 0 else math.inf for run, beside in pairs)
        return ratio if math.isfinite(ratio) else None

    @property
    def verdict(self) -> Verdict:
        """Whether the target and the ratios hold."""
        limits = [(self.ratio(each), each.limit) for each in self.yardsticks if each.limit is not None]
        if self.target is None and not limits:
            return Verdict.NONE
        if any(ratio is None or ratio > limit for ratio, limit in limits):
            return Verdict.MISS
        if self.target is None or self.value <= self.target:
            return Verdict.PASS
        return Verdict.PASS_BY_RATIO if self._passes_by_ratio(self.target) else Verdict.MISS

    def _passes_by_ratio(self, target: float) -> bool:
        """Whether the first yardstick with a reference says that a slow machine is all that is wrong.

        That of a fast machine counts for nothing: it would tighten the target.
        """
        for yardstick in self.yardsticks:
            if yardstick.reference is not None:
                ratio = self.ratio(yardstick)
                return ratio is not None and ratio <= target / yardstick.reference
        return False

    @property
    def waited(self) -> float:
        """The share of the clock in which the server was ready but something else held its core."""
        share = self.details.get("server_waited", 0.0)
        return share if isinstance(share, float) else 0.0

    def as_dict(self) -> dict[str, object]:
        """The row for the JSON, its medians, ratios and verdict included."""
        yardsticks = [
            {**asdict(each), "value": each.value, "ratio": self.ratio(each)} for each in self.yardsticks
        ]
        return {
            **asdict(self),
            "value": self.value,
            "yardsticks": yardsticks,
            "verdict": self.verdict.value,
        }

    def cells(self) -> list[str]:
        """The row for the table."""
        targets = [] if self.target is None else [f"<= {number(self.target)}"]
        limits = [each.limit for each in self.yardsticks if each.limit is not None]
        ratios = [self.ratio(each) for each in self.yardsticks]
        return [
            self.scenario,
            self.figure,
            f"{number(self.value)} {self.unit}",
            ", ".join([*targets, *(f"ratio <= {number(limit)}" for limit in limits)]),
            ", ".join(f"{each.name}: {number(each.value)}" for each in self.yardsticks),
            ", ".join("-" if ratio is None else f"{ratio:.2f}" for ratio in ratios),
            self.verdict.value,
        ]


DISTURBED_SHARE = 0.02
HEADINGS = ["scenario", "figure", "measured", "target", "yardstick", "ratio", "verdict"]


def number(value: float) -> str:
    """Three significant digits, without an exponent."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def table(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table, columns aligned for reading as text."""
    lines = [HEADINGS, *(row.cells() for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADINGS))]
    text = ["| " + " | ".join(map(str.ljust, line, widths)) + " |" for line in lines]
    text.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(text)


def heading(command: str, facts: Mapping[str, str]) -> str:
    """What the table was made by and on, and how it is read."""
    made_on = ", ".join(f"{name} {value}" for name, value in facts.items())
    return f"`{command}`\n{made_on}\nFigures are medians; a ratio is the median of the ratios run by run."


def disturbance(rows: Sequence[Row]) -> str:
    """Which scenarios shared the core with other load, and how much; empty if none did.

    CPU time is hardly touched by that, latency is.
    """
    disturbed = [row for row in rows if row.waited > DISTURBED_SHARE]
    if not disturbed:
        return ""
    names = ", ".join(dict.fromkeys(row.scenario for row in disturbed))
    share = max(row.waited for row in disturbed)
    return f"Not undisturbed: other load held the server's core for up to {share:.0%} of the time in {names}."


def as_json(command: str, facts: Mapping[str, str], rows: Sequence[Row]) -> str:
    """The whole run as JSON."""
    found = [row.as_dict() for row in rows]
    return json.dumps({"command": command, "machine": dict(facts), "rows": found}, indent=2)
