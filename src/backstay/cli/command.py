"""The common parts of all commands: examples at the end of the help, `--json`, and the answer to a typo.

A word that begins with a dash is an option. A name that does is written behind `--`, as everywhere: an option that was
misspelt is then never taken for a session or a ref.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

Decorated = Callable[..., Any]

json_option: Callable[[Decorated], Decorated] = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON, in a stable shape."
)


class Command(click.Command):
    """A command with examples, that knows the shape of its JSON and what a misspelt option may have been."""

    def __init__(self, *args: Any, examples: Sequence[str] = (), shape: str = "", **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.examples = tuple(examples)
        self.shape = shape  # of its JSON, by its name in `shapes`; `session*` is one a line

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Sort options from arguments; an unknown option is told with those that are like it."""
        words = list(args)
        if ctx.resilient_parsing and words and words[-1].startswith("--"):
            args = words[:-1]  # a shell asks for its value, and click would forget the arguments before it
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            # A short option is told by its first letter alone: `-graph` was one word when it was typed.
            name = error.option_name
            typed = next((word for word in words if word.startswith(name)), name).partition("=")[0]
            raise NoSuchOptionError(typed, self._names(ctx), ctx=ctx) from None

    def _names(self, ctx: click.Context) -> list[str]:
        return [name for each in self.get_params(ctx) if isinstance(each, click.Option) for name in each.opts]

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's
        """The examples, at the end of the help."""
        if self.examples:
            with formatter.section("Examples"):
                for example in self.examples:
                    formatter.write(f"{'':>{formatter.current_indent}}{example}\n")


class NoSuchOptionError(click.UsageError):
    """An option that a command does not have."""

    def __init__(self, typed: str, known: Sequence[str], *, ctx: click.Context) -> None:
        bare = typed.lstrip("-").lower()
        likely = [name for name in known if len(bare) > 1 and name.startswith(f"--{bare}")]
        likely = likely or alike(bare, [name for name in known if name.startswith("--")])
        rest = f" Did you mean {' or '.join(likely)}?" if likely else f" For a name that begins so, write -- {typed}."
        super().__init__(f"There is no option {typed}.{rest}", ctx=ctx)


def alike(word: str, known: Sequence[str]) -> list[str]:
    """Those of the known words that a typo may have been meant as, the likeliest first."""
    import difflib

    bare = {name.lstrip("-"): name for name in known}  # dashes are in all of them, and make none alike
    return [bare[name] for name in difflib.get_close_matches(word.lstrip("-"), bare, n=3, cutoff=0.65)]
