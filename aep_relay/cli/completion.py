"""``aep-relay completion``: completion for the shell."""

from __future__ import annotations

import click

from aep_relay.cli import main
from aep_relay.cli.support import exits

PROGRAM = "aep-relay"
VARIABLE = "_AEP_RELAY_COMPLETE"


@click.command("completion", short_help="Complete commands in the shell.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Write what SHELL needs to complete commands, options, Event types and the names of live sessions.

    \b
    Put it to use:
      bash  eval "$(aep-relay completion bash)"    in ~/.bashrc
      zsh   eval "$(aep-relay completion zsh)"     in ~/.zshrc
      fish  aep-relay completion fish > ~/.config/fish/completions/aep-relay.fish
    """
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    if found is None:
        exits.end(exits.USAGE, f"this version of click knows no completion for {shell}")
    # What is checked beyond this is the version of whatever bash comes first, which need not be the one in use.
    completion = found(main, {}, PROGRAM, VARIABLE)
    click.echo(completion.source_template % completion.source_vars())
