"""`backstay completion`: the script with which a shell completes commands, options, sessions and refs.

A session may be called `$(touch x)`, and a shell runs what is on the line when Enter is pressed. zsh and fish quote
the words they insert; bash inserts them as they are, so they are quoted here. No name is split, globbed or echoed
unquoted.
"""

from __future__ import annotations

import click
from click.shell_completion import BashComplete, FishComplete, add_completion_class

from backstay.cli.command import Command, json_option

_BASH = """\
%(complete_func)s() {
    local line type value
    COMPREPLY=()
    while IFS= read -r line; do
        type="${line%%%%,*}"
        value="${line#*,}"
        if [[ $type == 'dir' ]]; then
            COMPREPLY=()
            compopt -o dirnames
        elif [[ $type == 'file' ]]; then
            COMPREPLY=()
            compopt -o default
        elif [[ $type == 'plain' ]]; then
            COMPREPLY+=("$(printf '%%q' "$value")")
        fi
    done < <(env COMP_WORDS="${COMP_WORDS[*]}" COMP_CWORD="$COMP_CWORD" %(complete_var)s=bash_complete "$1")
    return 0
}

complete -o nosort -F %(complete_func)s %(prog_name)s
"""

_FISH = """\
function %(complete_func)s;
    set -l response (env %(complete_var)s=fish_complete COMP_WORDS=(commandline -cp) \
        COMP_CWORD=(commandline -t) %(prog_name)s);
    for completion in $response;
        set -l metadata (string split -m 1 "," -- $completion);
        if test "$metadata[1]" = "dir";
            __fish_complete_directories $metadata[2];
        else if test "$metadata[1]" = "file";
            __fish_complete_path $metadata[2];
        else if test "$metadata[1]" = "plain";
            printf '%%s\\n' $metadata[2];
        end;
    end;
end;

complete --no-files --command %(prog_name)s --arguments "(%(complete_func)s)";
"""


class QuotingBash(BashComplete):
    """Words for bash are quoted before it inserts them."""

    source_template = _BASH


class WholeFish(FishComplete):
    """A name with a comma is offered whole."""

    source_template = _FISH


def register() -> None:
    """Have click use these wherever it is asked for a shell."""
    add_completion_class(QuotingBash)
    add_completion_class(WholeFish)


@click.command("completion", cls=Command, shape="script", examples=["backstay completion fish"])
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@json_option
def command(shell: str, *, as_json: bool) -> None:
    """Print the script with which SHELL completes commands, options, sessions and refs.

    \b
    bash  echo 'eval "$(backstay completion bash)"' >> ~/.bashrc
    zsh   echo 'eval "$(backstay completion zsh)"' >> ~/.zshrc
    fish  backstay completion fish > ~/.config/fish/completions/backstay.fish
    """
    from click.shell_completion import get_completion_class

    from backstay.cli import COMPLETES, commands

    register()

    found = get_completion_class(shell)
    if found is None:
        raise click.UsageError(f"{shell} is not known")
    script = found(commands, {}, "backstay", COMPLETES).source()
    if as_json:
        from backstay import shapes

        script = shapes.dump({"shell": shell, "script": script})
    click.echo(script)
