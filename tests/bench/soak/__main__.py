"""Soak a relay and say what came of it."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import trio

import tests.bench.soak

from .. import machine
from ..daemon import relay
from .run import LIMITS, Soak, troubles


def main(arguments: Sequence[str]) -> int:
    """Run the soak; returns 1 if something was lost, grew or is left."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.soak", description=tests.bench.soak.__doc__)
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--seed", type=int, default=1, help="of what peers do")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure and sample there")
    options = parser.parse_args(arguments)
    machine.raise_descriptor_limit()
    server_core, load_core = machine.cores()
    os.sched_setaffinity(0, {load_core})
    with relay(server_core, **LIMITS) as server:
        soak = Soak(server, options.minutes * 60, options.seed)
        trio.run(soak.run)
        ended = server.process.poll()
        log = (server.directory / "log").read_text(errors="replace")
    figures = soak.figures()
    failures = [*soak.failures, *troubles(log, soak.reloads)]
    if ended is not None:
        failures.append(f"the relay ended with {ended}")
    for name, value in figures.items():
        print(f"{name:55} {value:>18,}")
    print("\n".join(failures))
    print(
        f"FAIL: {len(failures)} findings"
        if failures
        else "PASS: nothing was lost, nothing grew, nothing is left"
    )
    if options.json:
        found = {
            "figures": figures,
            "failures": failures,
            "samples": [asdict(sample) for sample in soak.samples],
        }
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
