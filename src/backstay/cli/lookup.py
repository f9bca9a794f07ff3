"""From what is typed to what is meant: sessions by a unique start of their id, calls too; and what a shell can offer.

An exact id always wins over ids that only begin like it. A start that fits several is an error that lists them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

import backstay
from backstay.cli.text import safe, short
from backstay.model import counted

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from backstay.face import Session, Store

_CANDIDATES = 8
_OFFERED = 200


def session_of(store: Store, given: str) -> Session:
    """The session that is meant."""
    return store.session(session_id(store, given))


def session_id(store: Store, given: str) -> str:
    """The id of the session that is meant: exactly this, or the only one that begins with it."""
    from backstay.store.overview import session_row

    exact = store.session(given).id  # says what is wrong with a name that cannot be one
    if session_row(store.backend, exact) is not None:
        return exact
    ids = [info.id for info in store.sessions()]
    return chosen(given, [id_ for id_ in ids if id_.startswith(given)], among=ids, noun="session")


def chosen(given: str, found: Sequence[str], *, among: Sequence[str], noun: str) -> str:
    """The one that was found, or an error that lists what it could have been."""
    if len(found) == 1:
        return found[0]
    if found:
        listed = ", ".join(sorted(found)[:_CANDIDATES])
        rest = f" and {len(found) - _CANDIDATES} more" if len(found) > _CANDIDATES else ""
        message = f"{given!r} could be {counted(len(found), noun)}: {listed}{rest}"
        raise backstay.InvalidInputError(message, hint="give more characters")
    message = f"there is no {noun} {given!r}"
    if not among:
        raise backstay.NotFoundError(message, hint=f"there are no {noun}s yet" if noun == "session" else "")
    import difflib

    alike = difflib.get_close_matches(given, among[:5000], n=3)
    hint = f"perhaps {' or '.join(alike)}; " if alike else ""
    where = "`backstay sessions` lists them" if noun == "session" else f"there are {', '.join(among[:_CANDIDATES])}"
    raise backstay.NotFoundError(message, hint=hint + where)


def session_argument(
    *, required: bool = True, also: str | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """SESSION, by its id or a unique start of it; `also`: what else a command takes in its place."""
    metavar = "|".join(filter(None, ["SESSION", also]))
    metavar = metavar if required else f"[{metavar}]"
    return click.argument("session", metavar=metavar, required=required, shell_complete=_offer_sessions)


def ref_argument(
    name: str = "ref", *, default: str | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A ref: branch, tag, checkpoint id or a start of one, each with `~N`."""
    if default is None:  # click takes a default of None for one: the argument would not be required
        return click.argument(name, metavar=name.upper(), shell_complete=_offer_refs)
    return click.argument(
        name, metavar=f"[{name.upper()}]", required=False, default=default, shell_complete=_offer_refs
    )


def branch_option(help_: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """`--branch`, main unless told otherwise."""
    return click.option(
        "--branch", metavar="NAME", default="main", show_default=True, help=help_, shell_complete=_offer_refs
    )


def limit_option(run: Callable[..., Any]) -> Callable[..., Any]:
    """`-n N`."""
    return click.option("-n", "limit", metavar="N", type=int, callback=_at_least_one, help="At most N of them.")(run)


def _at_least_one(_ctx: click.Context, _param: click.Parameter, value: int | None) -> int | None:
    if value is not None and value < 1:
        raise click.BadParameter(f"{value} is not at least 1")
    return value


def _offer_sessions(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    with _quiet_store(ctx) as store:
        if store is not None:
            fitting = ((i.id, i.agent or "") for i in store.sessions() if i.id.startswith(incomplete))
            return _items(islice(fitting, _OFFERED))
    return []


def _offer_refs(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    given = ctx.params.get("session")
    with _quiet_store(ctx) as store, contextlib.suppress(backstay.BackstayError):
        if store is not None and isinstance(given, str):
            from backstay.bookkeeping import told

            session = session_of(store, given)
            names = {**session.branches(), **session.tags()}
            offered = [(name, point.summary) for name, point in names.items()]
            with contextlib.suppress(backstay.NotFoundError):
                offered += [(short(point.id), point.summary) for point in islice(told(session.log()), 20)]
            return _items((name, text) for name, text in offered if name.startswith(incomplete))
    return []


def _items(found: Iterable[tuple[str, str]]) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    # What a shell reads line by line cannot hold a line break: such a name is typed, not offered.
    return [CompletionItem(name, help=safe(text) or None) for name, text in found if name.isprintable()]


@contextlib.contextmanager
def _quiet_store(ctx: click.Context) -> Any:
    """The store that the line so far names, or None: an error in the middle of typing helps no reader."""
    from backstay.cli.store_option import open_store

    try:
        import os

        store = open_store(ctx.params.get("url") or os.environ.get("BACKSTAY_URL"))
    except (backstay.BackstayError, OSError):
        yield None
        return
    with store:
        yield store
