"""What the benchmark found: figures against targets and yardsticks, as a table and as JSON."""

from __future__ import annotations

import json
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
    """Something else measured in the same run, in the same unit as the figure.

    ``reference`` is its value on the machine the target was set on, if that is known: where this machine is
    slower, the target is stretched by as much. ``limit`` is the ratio of figure to yardstick that must hold
    whatever the machine.
    """

    name: str
    value: float
    reference: float | None = None
    limit: float | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: a median, its unit and its target; ``details`` go to the JSON only."""

    scenario: str
    figure: str
    unit: str
    value: float
    target: float | None = None
    yardstick: Yardstick | None = None
    details: Mapping[str, object] = field(default_factory=dict)

    @property
    def ratio(self) -> float | None:
        """The figure as a multiple of its yardstick."""
        if self.yardstick is None or self.yardstick.value <= 0:
            return None
        return self.value / self.yardstick.value

    @property
    def verdict(self) -> Verdict:
        """Whether the target and the ratio hold."""
        limit = self.yardstick.limit if self.yardstick else None
        if self.target is None and limit is None:
            return Verdict.NONE
        if limit is not None and (self.ratio is None or self.ratio > limit):
            return Verdict.MISS
        if self.target is None or self.value <= self.target:
            return Verdict.PASS
        return Verdict.PASS_BY_RATIO if self.value <= self.target * self.slowness else Verdict.MISS

    @property
    def slowness(self) -> float:
        """How many times slower this machine is than the target's, by the yardstick; never below 1."""
        if self.yardstick is None or not self.yardstick.reference:
            return 1.0
        return max(1.0, self.yardstick.value / self.yardstick.reference)

    @property
    def waited(self) -> float:
        """The share of the clock in which the server was ready but something else held its core."""
        share = self.details.get("server_waited", 0.0)
        return share if isinstance(share, float) else 0.0

    def as_dict(self) -> dict[str, object]:
        """The row for the JSON, its verdict and ratio included."""
        return {**asdict(self), "ratio": self.ratio, "verdict": self.verdict.value}

    def cells(self) -> list[str]:
        """The row for the table."""
        targets = [] if self.target is None else [f"<= {number(self.target)}"]
        if self.yardstick and self.yardstick.limit is not None:
            targets.append(f"ratio <= {number(self.yardstick.limit)}")
        return [
            self.scenario,
            self.figure,
            f"{number(self.value)} {self.unit}",
            ", ".join(targets),
            f"{self.yardstick.name}: {number(self.yardstick.value)}" if self.yardstick else "",
            "" if self.ratio is None else f"{self.ratio:.2f}",
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
    """What the table was made by and on."""
    return "\n".join([f"`{command}`", ", ".join(f"{name} {value}" for name, value in facts.items())])


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
