"""``aep-relay pause``: control.pause."""

from __future__ import annotations

from aep_relay.cli.support.commands import plain_command

command = plain_command("pause", "Have an agent pause.", "pause its work")
