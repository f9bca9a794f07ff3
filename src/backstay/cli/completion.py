"""`backstay completion`: what a shell needs to complete commands, options, sessions and refs."""

from __future__ import annotations

import click

from backstay.cli.command import Command, json_option


@click.command("completion", cls=Command, shape="script", examples=["backstay completion fish"])
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@json_option
def command(shell: str, *, as_json: bool) -> None:
    """Print what SHELL needs to complete commands, options, sessions and refs.

    \b
    bash  echo 'eval "$(backstay completion bash)"' >> ~/.bashrc
    zsh   echo 'eval "$(backstay completion zsh)"' >> ~/.zshrc
    fish  backstay completion fish > ~/.config/fish/completions/backstay.fish
    """
    from click.shell_completion import get_completion_class

    from backstay.cli import COMPLETES, commands

    found = get_completion_class(shell)
    if found is None:
        raise click.UsageError(f"{shell} is not known")
    script = found(commands, {}, "backstay", COMPLETES).source()
    if as_json:
        from backstay.cli import shapes

        script = shapes.dump({"shell": shell, "script": script})
    click.echo(script)
