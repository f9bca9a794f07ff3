"""Ignore rules by single cases, each as git decides it."""

from __future__ import annotations

import pytest

from backstay.ignoring import rules_of

CASES = [
    # pattern, ignored, not ignored (a slash at the end: a folder)
    ("a", ["a", "a/", "x/a"], ["ab", "ba"]),
    ("a/", ["a/", "x/a/"], ["a"]),
    ("/a", ["a"], ["x/a"]),
    ("x/a", ["x/a"], ["y/x/a", "a"]),
    ("*.log", ["b.log", "x/.log"], ["b.logs"]),
    ("x/*.c", ["x/b.c"], ["x/y/b.c", "b.c"]),
    ("**/a", ["a", "x/y/a"], ["xa"]),
    ("x/**", ["x/a", "x/y/a"], ["x/", "y/a"]),
    ("x/**/a", ["x/a", "x/y/a", "x/y/z/a"], ["xa", "x/ya"]),
    ("x**/a", ["x/a", "xy/z/a", "xa"], ["y/a"]),  # the text before a wildcard is taken off first: git's own corner
    ("?", ["a"], ["ab", "ü"]),  # bytes, not letters
    ("[ab]", ["a", "b"], ["c", "ab"]),
    ("[!a]", ["b"], ["a"]),
    ("[^a]", ["b"], ["a"]),
    ("[]-]", ["]", "-"], ["a"]),
    ("[a-c]x", ["bx"], ["dx"]),
    ("[c-a]x", ["cx"], ["ax", "bx"]),
    ("[[:digit:]_]", ["1", "_"], ["a"]),
    ("[[:nope:]]", [], ["a", "n", "[[:nope:]]"]),
    ("[a", [], ["[a", "a"]),
    ("a[/]b", [], ["a/b"]),
    ("a\\", [], ["a", "a\\"]),
    ("\\*", ["*"], ["a"]),
    ("\\#a", ["#a"], ["a"]),
    ("\\!a", ["!a"], ["a"]),
    ("#a", [], ["#a", "a"]),
    ("a  ", ["a"], ["a  "]),
    ("a\\ ", ["a "], ["a"]),
    ("a\t", ["a\t"], ["a"]),
    ("/", [], ["a", "a/"]),
    ("a\x0cb", ["a\x0cb"], ["a", "b"]),  # only a newline ends a line
    ("a\u2028b", ["a\u2028b"], ["a", "b"]),
]


@pytest.mark.parametrize(("pattern", "ignored", "not_ignored"), CASES)
def test_a_pattern_means_what_it_means_to_git(pattern: str, ignored: list[str], not_ignored: list[str]) -> None:
    rules = rules_of([pattern])
    told = {path: rules.ignores(path.rstrip("/"), folder=path.endswith("/")) for path in [*ignored, *not_ignored]}
    assert told == dict.fromkeys(ignored, True) | dict.fromkeys(not_ignored, False)


def test_the_last_line_that_fits_decides_and_deeper_files_come_last() -> None:
    rules = rules_of(["*.log", "!keep.log", "/x/keep.log"])
    told = {path: rules.says(path, folder=False) for path in ("a.log", "keep.log", "x/keep.log", "a.txt")}
    assert told == {"a.log": True, "keep.log": False, "x/keep.log": True, "a.txt": None}
    inner = rules.inside("x", "!keep.log\n/only\n")
    assert [inner.ignores(path, folder=False) for path in ("x/keep.log", "x/only", "only")] == [False, True, False]


def test_windows_line_ends_and_a_byte_order_mark_are_no_part_of_a_pattern() -> None:
    rules = rules_of([]).inside("", "\ufeffa\r\nb\r\n")
    assert [rules.ignores(path, folder=False) for path in ("a", "b", "a\r")] == [True, True, False]


def test_a_name_that_is_no_text_is_matched_by_its_bytes() -> None:
    rules = rules_of(["\udcff*"])
    assert rules.ignores("\udcffa", folder=False)


def test_a_hostile_pattern_is_decided_at_once() -> None:
    lines = [
        "*a" * 40 + "b",
        "**/a*a*/" * 20 + "b",
        "**\\/a" * 20 + "b",
        "[a-z]*" * 30 + "!",
        "/" + "**/*a/" * 20 + "c*d",
    ]
    rules = rules_of(lines)
    for path in ("a" * 250, "/".join(["aa"] * 400), "/".join(["a"] * 1000)):
        assert rules.says(path, folder=True) is None  # a matcher that tries every way would not come to an end
