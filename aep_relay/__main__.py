"""``python -m aep_relay``: the same as ``aep-relay``."""

from __future__ import annotations

from aep_relay.cli import main

main(prog_name="aep-relay")
