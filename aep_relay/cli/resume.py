"""``aep-relay resume``: control.resume."""

from __future__ import annotations

from aep_relay.cli.support.commands import plain_command

command = plain_command("resume", "Have an agent go on.", "go on after a pause")
