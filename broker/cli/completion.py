"""``completion``: what a shell needs to complete commands and options."""

from typing import Final

import click
from click.shell_completion import get_completion_class

from orthia.broker.cli.group import example

_VARIABLE = "_ORTHIA_COMPLETE"
_FIRST: Final = {"zsh": "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }\n"}
"""What a shell has to be told before: a new ~/.zshrc knows no completions."""


@click.command(epilog=example("orthia completion bash > /etc/bash_completion.d/orthia"))
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print what makes a SHELL complete commands and options.

    For bash (4.4 or newer) and zsh add `eval "$(orthia completion bash)"` to ~/.bashrc, or
    `eval "$(orthia completion zsh)"` to ~/.zshrc; for fish write it to
    ~/.config/fish/completions/orthia.fish.
    """
    kind = get_completion_class(shell)
    if kind is None:
        raise LookupError(shell)
    root = click.get_current_context().find_root().command
    made = kind(root, {}, "orthia", _VARIABLE)
    click.echo(_FIRST.get(shell, "") + made.source_template % made.source_vars())
