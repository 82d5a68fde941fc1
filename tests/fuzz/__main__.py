"""``python -m tests.fuzz TARGET --seconds N``: a long run, guided by coverage, its findings written to files."""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
from pathlib import Path
from typing import Any

INSTRUMENTED = ["aep_relay", "websockets"]


def main() -> None:
    """Fuzz until the time is up or something is found, which is written to the folder of findings."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("target")
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument(
        "--corpus", type=Path, help="folder that keeps what reaches new code, from run to run"
    )
    options = parser.parse_args()
    atheris: Any = importlib.import_module("atheris")
    with atheris.instrument_imports(include=INSTRUMENTED):
        targets = importlib.import_module("tests.fuzz.targets")
    mutation = importlib.import_module("tests.fuzz.seeds")
    target, seeds = targets.TARGETS[options.target]
    corpus = options.corpus or Path(tempfile.mkdtemp(prefix="aep-fuzz-"))
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(seeds):
        (corpus / f"seed-{number}").write_bytes(seed)
    words = corpus.with_name(corpus.name + ".words")
    words.write_text("".join(map(_quoted, mutation.WORDS)))
    findings = Path(__file__).parent / "findings" / options.target
    findings.mkdir(parents=True, exist_ok=True)
    arguments = [
        f"-max_total_time={options.seconds}",
        "-max_len=4096",
        # From the first minute on, inputs as long as the seeds.
        "-len_control=0",
        "-timeout=10",
        f"-artifact_prefix={findings}/",
        f"-dict={words}",
        "-print_final_stats=1",
        str(corpus),
    ]
    atheris.Setup([sys.argv[0], *arguments], target)
    atheris.Fuzz()


def _quoted(word: bytes) -> str:
    """Return a line of a libFuzzer dictionary."""
    return '"' + "".join(f"\\x{byte:02x}" for byte in word[:60]) + '"\n'


if __name__ == "__main__":
    main()
