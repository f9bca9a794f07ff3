"""`holdfast completion`: what a shell needs to complete commands, options, sessions and refs."""

from __future__ import annotations

import click

from holdfast.cli.line import Line


@click.command("completion", cls=Line, examples=["holdfast completion fish"])
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print what SHELL needs to complete commands, options, sessions and refs.

    \b
    bash  echo 'eval "$(holdfast completion bash)"' >> ~/.bashrc
    zsh   echo 'eval "$(holdfast completion zsh)"' >> ~/.zshrc
    fish  holdfast completion fish > ~/.config/fish/completions/holdfast.fish
    """
    from click.shell_completion import get_completion_class

    from holdfast.cli import COMPLETES, commands

    found = get_completion_class(shell)
    if found is None:
        raise click.UsageError(f"{shell} is not known")
    click.echo(found(commands, {}, "holdfast", COMPLETES).source())
