"""What the commands' own lines have in common: their examples, ids that look like options, and `--json`.

A session may be called `-x` or `--all`. After `--` everything is an argument, as everywhere; but also without it, what
is no option of a command is taken for an argument, and only when nothing has that name is it called an unknown option.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

Decorated = Callable[..., Any]

json_option: Callable[[Decorated], Decorated] = click.option(
    "--json", "as_json", is_flag=True, help="As JSON, in a shape that stays."
)


class Command(click.Command):
    """A command with examples, whose arguments may begin with a dash."""

    def __init__(self, *args: Any, examples: Sequence[str] = (), shape: str = "", **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.examples = tuple(examples)
        self.shape = shape  # of its JSON, by its name in `shapes`; `session*` is one a line

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Sort options from arguments, and leave the rest to click."""
        options, arguments, strange = self._sorted(list(args))
        room = sum(
            [each.nargs if each.nargs > 0 else len(args) for each in self.params if isinstance(each, click.Argument)]
        )
        if strange and len(arguments) > room:
            known = sorted({opt for each in self.params for opt in each.opts})
            raise click.NoSuchOption(strange[0], possibilities=_alike(strange[0], known), ctx=ctx)
        return super().parse_args(ctx, [*options, "--", *arguments] if arguments else options)

    def _sorted(self, args: list[str]) -> tuple[list[str], list[str], list[str]]:
        """Options with their values, arguments, and those of the arguments that may have been meant as options."""
        known = {
            opt: each
            for each in self.params
            if isinstance(each, click.Option)
            for opt in (*each.opts, *each.secondary_opts)
        }
        flags = {"-h", "--help"}
        options: list[str] = []
        arguments: list[str] = []
        strange: list[str] = []
        while args:
            word = args.pop(0)
            if word == "--":
                arguments += args
                break
            name = word.partition("=")[0] if word.startswith("--") else word[:2]
            if word[:1] != "-" or word == "-":
                arguments.append(word)
            elif name in flags or name in known:
                options.append(word)
                if args and _wants_value(word, known):
                    options.append(args.pop(0))
            else:
                arguments.append(word)
                strange.append(word)
        return options, arguments, strange

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's
        """The examples, at the end of the help."""
        if self.examples:
            with formatter.section("Examples"):
                for example in self.examples:
                    formatter.write(f"{'':>{formatter.current_indent}}{example}\n")


def _wants_value(word: str, known: Mapping[str, click.Option]) -> bool:
    """True if the value of an option is the next word; `-yn 5` is `-y -n 5`, and `-n5` has its value."""
    if word.startswith("--"):
        return word in known and not known[word].is_flag
    for place, letter in enumerate(word[1:], 1):
        option = known.get(f"-{letter}")
        if option is None:
            return False
        if not option.is_flag:
            return place == len(word) - 1
    return False


def _alike(word: str, known: Sequence[str]) -> list[str]:
    import difflib

    return difflib.get_close_matches(word, known)
