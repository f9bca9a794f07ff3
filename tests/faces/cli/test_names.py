"""Whatever a session is called, every command finds it; a start of its name is enough where it is the only one."""

from __future__ import annotations

from pathlib import Path

import pytest

import backstay
from backstay import cli
from tests.faces.cli import hostile, shell

COMMANDS: list[list[str]] = [
    ["log", "SESSION", "--graph", "--all"],
    ["show", "SESSION", "main~1"],
    ["diff", "SESSION", "main", "main~1"],
    ["branches", "SESSION"],
    ["fork", "SESSION", "main", "new"],
    ["tag", "SESSION", "main", "t"],
    ["restore", "SESSION", "main~1", "-y"],
    ["undo", "SESSION", "-y"],
    ["recover", "SESSION"],
    ["verify", "SESSION"],
    ["prune", "SESSION", "--keep-last", "3", "--dry-run"],
    ["search", "wide", "--session", "SESSION"],
    ["delete", "SESSION", "main~5", "-y"],
    ["export", "out.backstay", "--session", "SESSION", "--overwrite"],
    ["delete", "SESSION", "-y"],
]


@pytest.mark.parametrize("id_", hostile.IDS, ids=ascii)
def test_every_command_works_on_a_session_of_any_name(id_: str, tmp_path: Path) -> None:
    hostile.make(tmp_path / "store.db")
    for command in COMMANDS:
        words = [id_ if word == "SESSION" else word for word in command]
        if id_.startswith("-") and "--session" not in command:
            options = [word for word in command if word.startswith("-") or word == "3"]
            arguments = [id_ if word == "SESSION" else word for word in command[1:] if word not in options]
            words = [command[0], *options, "--", *arguments]
        done = shell.run(*words, folder=tmp_path, BACKSTAY_URL="store.db")
        assert done.code == 0, (words, done)
        assert "\x1b" not in done.out + done.err
    with backstay.open(tmp_path / "store.db") as store:
        assert id_ not in [info.id for info in store.sessions()]


def test_a_name_that_begins_with_a_dash_is_written_behind_two_of_them(tmp_path: Path) -> None:
    hostile.make(tmp_path / "store.db")
    for words in (["log", "--", "-x"], ["log", "-n", "2", "--", "-x", "main~1"], ["branches", "--", "--all"]):
        done = shell.run(*words, folder=tmp_path, BACKSTAY_URL="store.db")
        assert done.code == 0, (words, done)
    bare = shell.run("delete", "-y", "-x", folder=tmp_path, BACKSTAY_URL="store.db")
    assert (bare.code, bare.out) == (2, "")
    assert "There is no option -x. For a name that begins so, write -- -x." in bare.err


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("log ticket-42 --grpah", "--graph"),
        ("log --grpah ticket-42", "--graph"),
        ("log ticket-42 main --grpah", "--graph"),
        ("log ticket-42 -graph", "--graph"),
        ("show ticket-42 --mesages", "--messages"),
        ("prune --keep_last 3 --dry", "--keep-last"),
        ("prune --keep-last=3 --dry", "--dry-run"),
        ("sessions --Json", "--json"),
        ("--versoin", "--version"),
        ("--json sessions", "stand behind it"),
        ("sesions", "sessions"),
        ("LOG ticket-42", "log"),
        ("ls", "sessions"),
        ("resume", "recover"),
        ("xyzzy", "`backstay --help`"),
    ],
)
def test_what_was_mistyped_is_answered_with_what_was_meant_and_does_nothing(
    line: str, meant: str, folder: Path
) -> None:
    done = shell.run(*line.split(), folder=folder)
    assert (done.code, done.out) == (2, "")
    assert meant in done.err.splitlines()[-1]


def test_words_from_elsewhere_lead_to_commands_there_are() -> None:
    assert set(cli.OTHER_WORDS.values()) <= cli.COMMANDS.keys()
    assert not cli.OTHER_WORDS.keys() & cli.COMMANDS.keys()


def test_help_is_also_a_word(folder: Path) -> None:
    assert shell.run("help", folder=folder).out.startswith(shell.run("--help", folder=folder).out)
    assert shell.run("help", "log", folder=folder) == shell.run("log", "--help", folder=folder)


@pytest.mark.parametrize("words", [["-n", "2"], ["-n2"], ["--oneline", "-n", "2"]], ids=" ".join)
def test_options_may_stand_before_and_behind_what_they_are_about(words: list[str], folder: Path) -> None:
    before = shell.run("log", *words, "ticket-42", folder=folder)
    behind = shell.run("log", "ticket-42", *words, folder=folder)
    assert before == behind
    assert before.code == 0


def test_a_start_that_only_one_session_has_is_enough(folder: Path) -> None:
    assert shell.run("log", "night", folder=folder).out == shell.run("log", "nightly report/06-01", folder=folder).out


def test_a_start_that_several_have_lists_them(folder: Path) -> None:
    done = shell.run("log", "tick", folder=folder)
    assert done.code == 1
    assert done.err == "backstay: 'tick' could be 2 sessions: ticket-42, ticket-43 (give more characters)\n"


def test_a_whole_name_wins_over_those_that_begin_with_it(folder: Path) -> None:
    with backstay.open(folder / ".backstay" / "store.db") as store:
        store.session("tick").commit({"n": 1})
    assert "n" in shell.run("show", "tick", folder=folder).out


def test_a_name_that_nobody_has_is_answered_with_one_like_it(folder: Path) -> None:
    done = shell.run("log", "ticket-44", folder=folder)
    assert done.code == 1
    assert "perhaps ticket-4" in done.err


def test_refs_are_branches_tags_ids_and_their_parents(folder: Path) -> None:
    with backstay.open(folder / ".backstay" / "store.db") as store:
        asked = store.session("ticket-42").checkpoint("asked").id
    refs = ("asked", asked, asked[:4], "main~6")
    assert len({shell.run("show", "ticket-42", ref, folder=folder).out.split()[1] for ref in refs}) == 1
    done = shell.run("show", "ticket-42", "main~99", folder=folder)
    assert done.code == 1
    assert "goes back further than the history" in done.err
    nothing = shell.run("show", "ticket-42", "nothing", folder=folder)
    assert "main, what-if, asked" in nothing.err
    assert "session." not in nothing.err, "a hint for Python at a shell"


def make_with_ids(path: Path, ids: list[str]) -> None:
    with backstay.open(path) as store:
        session = store.session("s")
        for number, id_ in enumerate(ids):
            session.commit({"messages": [{"role": "user", "content": f"wide {number} " + "x" * 200}]}, id=id_)


def test_every_command_works_on_checkpoints_whose_ids_mean_harm(tmp_path: Path) -> None:
    make_with_ids(tmp_path / "store.db", [f"\x1b[31m{number}\x07\u202e" for number in range(8)])
    for command in [*COMMANDS[:3], ["show", "SESSION", "\x1b"], ["log", "SESSION", "--oneline"], *COMMANDS[3:]]:
        words = ["s" if word == "SESSION" else word for word in command]
        done = shell.run(*words, folder=tmp_path, BACKSTAY_URL="store.db")
        assert (done.code == 0) == (words[-1] != "\x1b"), (words, done)
        assert not set("\x1b\x07\u202e") & set(done.out + done.err), words


def test_ids_that_begin_with_the_time_are_told_apart_and_leave_room_for_the_rest(tmp_path: Path) -> None:
    ids = [f"1f1e1115-9cb{number}-68b8-8000-b8fb58b3670f" for number in range(8)]
    make_with_ids(tmp_path / "store.db", ids)
    for command in [*COMMANDS, ["delete", "SESSION", "-y"]][:-3]:
        words = ["s" if word == "SESSION" else word for word in command]
        done = shell.run(*words, folder=tmp_path, BACKSTAY_URL="store.db")
        assert max(map(len, done.out.splitlines())) <= 80, (words, done.out)
    log = shell.run("log", "s", "--oneline", folder=tmp_path, BACKSTAY_URL="store.db").out
    assert {line[:13] for line in log.splitlines() if line.startswith("1f1e")} >= {ids[0][:13], ids[1][:13]}
    assert shell.run("show", "s", ids[3][:13], folder=tmp_path, BACKSTAY_URL="store.db").code == 0
