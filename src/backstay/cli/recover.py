"""`backstay recover`: crashed runs and calls in doubt; and deciding them, from any process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

import click

import backstay
from backstay.cli.command import Command, json_option
from backstay.cli.lookup import chosen, session_argument, session_of
from backstay.cli.store_option import in_store
from backstay.cli.workspace_option import folder_of, session_in, workspace_option

if TYPE_CHECKING:
    from backstay.cli.screen import Screen
    from backstay.face import Session, Store
    from backstay.face.run_status import RunStatus
    from backstay.model import Call

_FILES = 12
_DECISIONS: dict[str, Literal["retry", "rollback", "skip"]] = {"retry": "retry", "rollback": "rollback", "skip": "skip"}


@click.command(
    "recover",
    cls=Command,
    shape="standing*",
    examples=[
        "backstay recover",
        "backstay recover ticket-43 --result '\"refund of 49.90 EUR issued\"'",
        "backstay recover ticket-43 --retry",
        "backstay recover ticket-43 --mark-failed --reason 'the bank said no'",
        "backstay recover ticket-43 --abandon --reason 'closed by hand'",
    ],
)
@session_argument(required=False)
@click.option("--call", "call", metavar="ID", help="The call, by its id or a start of it, where several are in doubt.")
@click.option("--branch", metavar="NAME", help="The branch, where several crashed.")
@click.option("--list", "as_list", is_flag=True, help="List crashed runs; the default.")
@click.option("--retry", is_flag=True, help="It did not happen: the next run makes the call again.")
@click.option("--rollback", is_flag=True, help="As --retry; the files are put back as they were before it.")
@click.option("--skip", is_flag=True, help="Go on without it: the next run is given None.")
@click.option("--result", metavar="JSON", help="It happened, with this result.")
@click.option("--mark-failed", is_flag=True, help="It failed: the next run is given the error.")
@click.option("--abandon", is_flag=True, help="Give up all pending calls of the branch; they stay in the history.")
@click.option(
    "--reason",
    metavar="TEXT",
    default="decided at the command line",
    help="The reason, for --mark-failed and --abandon.",
)
@workspace_option
@json_option
@in_store
def command(
    store: Store,
    session: str | None,
    *,
    call: str | None,
    branch: str | None,
    as_list: bool,
    workspace: str | None,
    as_json: bool,
    reason: str,
    **decisions: Any,
) -> None:
    """List crashed runs, the last checkpoint of each, and the calls in doubt; or decide one call.

    A call is in doubt when it was started and has no recorded outcome: look where it would have left a trace, then say
    so. The line of code that started the session goes on with it. A rewind of SESSION that was interrupted while files
    were put back comes to its end; with --list it is only shown.
    """
    from backstay.cli.screen import Screen

    made = [name for name, given in decisions.items() if given not in (False, None)]
    if len(made) > 1 or (made and as_list):
        raise click.UsageError("give one of --list, --retry, --rollback, --skip, --result, --mark-failed, --abandon")
    if made and session is None:
        raise click.UsageError("which SESSION? `backstay recover` says what is in doubt")
    if not made:
        finished = session is not None and not as_list and _finish(store, session, branch, as_json=as_json)
        with Screen(paged=not as_json) as screen:
            _list(screen, store, session, branch, as_json=as_json, quiet=finished)
        return
    found = session_of(store, session or "")
    finished = made[0] not in ("skip", "abandon") and _finish(store, found.id, branch, as_json=as_json)
    if finished and not any(each.in_doubt for _, each in _crashed(store, found.id)):
        return
    if made == ["abandon"]:
        said = _abandon(store, found, branch, reason)
    else:
        if made == ["rollback"]:
            at = branch or next((each.branch for _, each in _crashed(store, found.id) if each.in_doubt), "main")
            found = session_in(store, found.id, at, workspace)
        said = _decide(store, found, call, branch, made[0], decisions["result"], reason)
    if as_json:
        _list(Screen(), store, found.id, None, as_json=True)
    else:
        Screen().text(said)


def _finish(store: Store, session: str, branch: str | None, *, as_json: bool) -> bool:
    """Bring restores to their end that were interrupted while files were put back; True if there were any here."""
    from backstay.cli.interrupted import finish, undo_line
    from backstay.cli.screen import Screen

    screen, finished = Screen(aside=as_json), False
    for found, each in _crashed(store, session):
        if each.placing is None or each.live or branch not in (None, each.branch):
            continue
        try:
            if finish(screen, found, each.branch) is not None:
                screen.line(f"To take it back: {undo_line(found.id, each.branch)}")
                finished = True
        except (backstay.InDoubtError, backstay.LeaseHeldError):
            continue  # it is elsewhere, or another process does it: the list says so
    return finished


def _list(
    screen: Screen, store: Store, session: str | None, branch: str | None, *, as_json: bool, quiet: bool = False
) -> None:
    from backstay import shapes

    crashed = [(found, each) for found, each in _crashed(store, session) if branch is None or each.branch == branch]
    doubts = Counter(found.id for found, each in crashed for _ in each.in_doubt)
    for found, standing in crashed:
        if as_json:
            screen.line(shapes.dump(shapes.standing(found.id, standing)))
        else:
            _tell(screen, found, standing, alone=doubts[found.id] == 1)
    if not crashed and not as_json and not quiet:
        where = "" if session is None else " here"
        screen.line(f"Nothing crashed{where}, and no call is in doubt.")


def _crashed(store: Store, session: str | None) -> Iterator[tuple[Session, RunStatus]]:
    from backstay.face.run_status import run_statuses

    if session is not None:
        found = session_of(store, session)
        yield from ((found, each) for each in run_statuses(store.backend, found))
        return
    for info in store.crashed():
        found = store.session(info.id)
        yield from ((found, each) for each in run_statuses(store.backend, found) if not each.live)


def _tell(screen: Screen, session: Session, standing: RunStatus, *, alone: bool) -> None:
    from backstay.cli.conversation import arguments, call_line
    from backstay.cli.restore import quoted
    from backstay.cli.text import age, ago, cut, safe, short, wrapped
    from backstay.model import counted

    where = "" if standing.branch == "main" else f"  branch {safe(standing.branch)}"
    times = f" ({counted(standing.crashes, 'crash')} at this spot)" if standing.crashes > 1 else ""
    placing = standing.placing
    state = ("a run is alive", "green") if standing.live else (f"crashed{times}", "bold red")
    if placing is not None:
        state = ("files are being put back", "green") if standing.live else ("files were being put back", "bold yellow")
    screen.line((safe(session.id), "bold"), where, "  ", state)
    head = standing.head
    if head is None:
        screen.line("  stood before its first checkpoint")
    else:
        step = "" if head.step is None else f"step {head.step}, "
        said = f"{step}{head.summary}"
        end = f"  {age(head.created_at)}"
        room = screen.width - 18 - len(end) - len(short(head.id))
        screen.line("  last recorded ", (short(head.id), "yellow"), f"  {cut(safe(said), room)}", (end, "dim"))
    if placing is not None and not standing.live:
        _tell_placing(screen, session, standing.branch, placing)
    doubtful = {call.id for call in standing.in_doubt if call is not placing}
    for call in standing.calls:
        if call is placing:
            continue
        screen.line("  ", *call_line(call, screen.width - 2))
        if call.id in doubtful:
            screen.line("    call ", (call.id, "yellow"), f"  started {ago(call.started_at)}")
            given = "" if call.args is None else arguments(call.args)
            if len(given) > screen.width // 2:  # cut above, and needed to decide
                for line in wrapped(given, screen.width - 6):
                    screen.line("      ", line)
    if doubtful and not standing.live:
        back = "--rollback | " if _tell_files(screen, session, standing.branch) else ""
        which = "" if alone else "--call ID "
        screen.line("  Did it happen? Look, then say: ", (f"backstay recover {which}{quoted(session.id)}", "cyan"))
        screen.line("    ", (f"--result JSON | --retry | {back}--skip | --mark-failed | --abandon", "cyan"))
    elif not standing.live and placing is None:
        screen.line("  Nothing is in doubt: it goes on with the line of code that started it.")
    screen.line()


def _tell_placing(screen: Screen, session: Session, branch: str, call: Call) -> None:
    """Where files were being put back when that was interrupted, and the way on."""
    from backstay.cli.interrupted import as_of, recover_line, undo_line
    from backstay.cli.restore import quoted
    from backstay.cli.text import ago, safe
    from backstay.listing import shown
    from backstay.run.file_restore import here_is, placed_by

    begun = placed_by(call.args)
    there = here_is(begun) is None
    where = safe(shown(begun.path)) + (f" on {safe(begun.host)}" if there else "")
    screen.line(f"  begun {ago(call.started_at)} in {where},{as_of(begun)}")
    recover, undo = recover_line(session.id, branch), undo_line(session.id, branch)
    if there:
        screen.line("  That folder is not here. To finish it there: ", (recover, "cyan"))
        skip = f"backstay recover --call {call.id} --skip {quoted(session.id)}"
        screen.line("  To leave the files there as they are: ", (skip, "cyan"))
        return
    screen.line("  To finish it: ", (recover, "cyan"))
    screen.line("  To take it back: ", (undo, "cyan"))


def _tell_files(screen: Screen, session: Session, branch: str) -> bool:
    """The files that a call in doubt may have changed, if the folder is here; False if none differ from the head's."""
    from backstay.cli.text import cut, safe

    try:
        files = session.diff(branch, backstay.Workspace(folder_of(session, branch))).files
    except (backstay.BackstayError, OSError):
        return False
    paths = [] if files is None else [*files.added, *files.changed, *files.removed, *files.mode]
    if paths:
        screen.line("    files changed since: ", cut(safe(", ".join(paths[:_FILES])), screen.width - 28))
    return bool(paths)


def _decide(
    store: Store,
    session: Session,
    call: str | None,
    branch: str | None,
    decision: str,
    result: str | None,
    reason: str,
) -> str:
    """Decide a call; what to say of it."""
    from backstay.model import counted

    made = _call(store, session, call, branch)
    if decision == "result":
        session.resolve(made.id, result=_value(result or ""))
    elif decision == "mark_failed":
        session.resolve(made.id, failed=reason)
    else:
        session.resolve(made.id, _DECISIONS[decision])
    said = {
        "result": "done, with that result",
        "mark_failed": "recorded as failed",
        "retry": "to be made again",
        "rollback": "rolled back, and to be made again",
        "skip": "skipped",
    }
    left = sum(len(each.in_doubt) for _, each in _crashed(store, session.id))
    rest = f"{counted(left, 'call')} in doubt: backstay recover" if left else "run the session again to go on"
    return f"Decided: {made.name} ({made.id}) is {said[decision]}.\n{session.id}: {rest}."


def _call(store: Store, session: Session, given: str | None, branch: str | None) -> Call:
    """The call that is to be decided: the one named, or the only one in doubt."""
    doubts = [
        call
        for _, standing in _crashed(store, session.id)
        if branch is None or standing.branch == branch
        for call in standing.in_doubt
    ]
    if given is not None:
        ids = [call.id for call in doubts]
        id_ = chosen(given, [each for each in ids if each.startswith(given)], among=ids, noun="call in doubt")
        return next(call for call in doubts if call.id == id_)
    if len(doubts) == 1:
        return doubts[0]
    if not doubts:
        message = f"no call of session {session.id!r} is in doubt"
        raise backstay.NotFoundError(message, hint="`backstay recover` lists what is")
    listed = ", ".join(f"{call.id} ({call.name})" for call in doubts[:8])
    message = f"{len(doubts)} calls are in doubt: {listed}"
    raise backstay.InvalidInputError(message, hint="say which with --call ID")


def _value(text: str) -> Any:
    import json

    try:
        return json.loads(text)
    except ValueError as error:
        message = f"--result is not JSON: {error}"
        raise click.UsageError(f"{message}; text needs quotes inside the shell's: --result '\"done\"'") from None


def _abandon(store: Store, session: Session, branch: str | None, reason: str) -> str:
    """Give up what is pending on a branch; what to say of it."""
    from backstay.model import counted

    found = {each.branch: each for _, each in _crashed(store, session.id)}
    if branch is None and len(found) > 1:
        message = f"{len(found)} branches crashed: {', '.join(found)}"
        raise backstay.InvalidInputError(message, hint="say which with --branch NAME")
    name = branch if branch is not None else next(iter(found), "main")
    if name not in found:
        message = f"nothing is pending on branch {name!r} of session {session.id!r}"
        raise backstay.NotFoundError(message, hint="`backstay recover` lists what is")
    session.abandon(name, reason=reason)
    calls = counted(len(found[name].calls), "call")
    said = f"Abandoned: {calls} on {name} of {session.id}; they stay in the history."
    return f"{said}\nThe next run starts at the last checkpoint."
