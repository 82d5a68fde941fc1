"""``python -m tests.bench [scenario ...]``: run scenarios, print the table, write the JSON."""

from __future__ import annotations

import argparse
import gc
import os
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from . import machine, nats, report
from .catalogue import SCENARIOS, summary
from .harness import Bench
from .process import BenchError


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench",
        description="Measure the installed relay against its targets and yardsticks.",
        epilog="\n".join(f"{name:16} {summary(scenario)}" for name, scenario in SCENARIOS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("scenario", nargs="*", help="which to run; all by default")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure there")
    parser.add_argument("--repeat", type=int, default=5, metavar="N", help="rounds behind each median")
    parser.add_argument("--quick", action="store_true", help="smaller loads and 2 runs, to see that it works")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; returns 1 if a target was missed or a scenario could not be run."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if unknown := set(options.scenario) - set(SCENARIOS):
        parser.error(f"no such scenario: {', '.join(sorted(unknown))}")
    command = shlex.join(["python", "-m", "tests.bench", *arguments])
    descriptors = machine.raise_descriptor_limit()
    server_core, load_core = machine.cores()
    os.sched_setaffinity(0, {load_core})
    # What the load allocates is many and flat; a collection in mid-run would show up as the relay's latency.
    gc.disable()
    repeat = min(2, options.repeat) if options.quick else options.repeat
    bench = Bench(repeat, options.quick, server_core, load_core, descriptors)
    with machine.favoured() as nice:
        facts = machine.describe(server_core, load_core, nice, nats.version())
        rows, failed = _run(options.scenario or list(SCENARIOS), bench)
    print(f"{report.heading(command, facts)}\n\n{report.table(rows)}\n{report.disturbance(rows)}".rstrip())
    if options.json:
        options.json.write_text(report.as_json(command, facts, rows) + "\n")
    return int(failed or any(row.verdict is report.Verdict.MISS for row in rows))


def _run(names: Sequence[str], bench: Bench) -> tuple[list[report.Row], bool]:
    rows, failed = list[report.Row](), False
    for name in names:
        started = time.monotonic()
        try:
            found = SCENARIOS[name](bench)
        except (BenchError, OSError) as error:
            print(f"{name}: {error}", file=sys.stderr)
            failed = True
            continue
        rows += found
        gc.collect()
        seconds = time.monotonic() - started
        print(f"{name}: {seconds:.1f} s, {', '.join(row.verdict.value for row in found)}", file=sys.stderr)
    return rows, failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
