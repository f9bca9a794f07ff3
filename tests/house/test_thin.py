"""Rules once, shelves thin: what may be done is decided in `rules`; a backend keeps rows and refuses none of it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house.tree import SRC, name_of, parsed, python_files

CELLAR = "backends"
CELLAR_FILES = python_files(f"src/backstay/{CELLAR}")
THIN_FILES = [*CELLAR_FILES, *python_files("src/backstay/port")]
RULES_FILES = python_files("src/backstay/rules")

REFUSALS = {
    "NotFoundError",
    "AlreadyExistsError",
    "ConflictError",
    "LeaseHeldError",
    "FencedError",
    "InDoubtError",
    "MismatchError",
    "CallFailedError",
}
DRIVERS = {"apsw", "psycopg"}
MAX_VERBS = 18
BELOW_THE_RULES = ("codec", "delta", "digest", "errors", "hints", "ids", "model", "port", "rules", "sealing")
IMPURE = {"apsw", "os", "pathlib", "psycopg", "random", "secrets", "socket", "sqlite3", "threading", "time"}

STATEMENT = re.compile(r"\b(SELECT|INSERT INTO|UPDATE|DELETE FROM|CREATE|ALTER|RETURNS|BEGIN)\b")
# A number that something is reckoned or compared with: `n % 16`, `lease / 20`, `size > 4000000`. Kinds of rows, pages,
# shifts that put two numbers into one key and how a table is laid out are the backend's own.
RECKONED = re.compile(r"(?:[%/*+-]|(?<!<)<=?|(?<!>)>=?)\s*(\d+|\0\w+)(?![\w.'])")
# 0 and 1 say "none", "one" and "the next one", the others turn seconds into microseconds.
PLAIN = {"0", "1", "1000", "1000000"}
# How far PostgreSQL's own sequence is moved at once: how a number is made, not which numbers a rule allows.
OF_THE_SERVER = {"FAR"}


def names_in(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Every name that a module speaks of, with its line; texts in quotes too, because annotations may be."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute):
            if not (isinstance(node.value, ast.Name) and node.value.id in DRIVERS):  # apsw has a MismatchError too
                yield node.lineno, node.attr
        elif isinstance(node, ast.alias):
            yield node.lineno, node.name.rpartition(".")[2]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports say from where"
            module = node.module or ""
            yield module
            yield from [f"{module}.{alias.name}" for alias in node.names if module == "backstay"]


def numbers_in_sql(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Numbers that stand in statements, and numbers of the module that are put into them."""
    ours = {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and type(node.value.value) is int
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            text = "".join([_shown(part, ours) for part in node.values])
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            text = node.value
        else:
            continue
        if STATEMENT.search(text):
            text = re.sub(r"--[^\n]*|'[^']*'", "", text)
            found = [number.lstrip("\0") for number in RECKONED.findall(text)]
            yield from [(node.lineno, number) for number in found if number not in PLAIN]


def _shown(part: ast.expr, ours: set[str]) -> str:
    """A part of a text that is put together; a number of the module by its name, marked."""
    if isinstance(part, ast.Constant):
        return str(part.value)
    assert isinstance(part, ast.FormattedValue)
    name = part.value.id if isinstance(part.value, ast.Name) else ""
    return f"\0{name}" if name in ours else "value"


@pytest.mark.parametrize("path", THIN_FILES, ids=name_of)
def test_no_backend_refuses_anything_about_sessions_branches_calls_or_leases(path: Path) -> None:
    found = [f"{name_of(path)}:{at} {name}" for at, name in names_in(parsed(path)) if name in REFUSALS]
    assert not found, "say it in rules/refusals.py, once for all: " + ", ".join(found)


@pytest.mark.parametrize("path", CELLAR_FILES, ids=name_of)
def test_no_statement_holds_a_number_that_we_chose(path: Path) -> None:
    numbers = [(at, number) for at, number in sorted(set(numbers_in_sql(parsed(path)))) if number not in OF_THE_SERVER]
    found = [f"{name_of(path)}:{at} {number}" for at, number in numbers]
    assert not found, "limits and shares are the rules' to know: " + ", ".join(found)


@pytest.mark.parametrize("path", THIN_FILES, ids=name_of)
def test_neither_a_backend_nor_the_port_knows_a_rule(path: Path) -> None:
    above = ("backstay.rules", "backstay.store", "backstay.run", "backstay.upkeep", "backstay.opening")
    found = [module for module in imported(parsed(path)) if module.startswith(above)]
    assert not found


@pytest.mark.parametrize("path", RULES_FILES, ids=name_of)
def test_no_rule_knows_a_backend_a_clock_or_a_die(path: Path) -> None:
    for module in imported(parsed(path)):
        first, _, rest = module.partition(".")
        if first == "backstay":
            assert not rest or rest.split(".")[0] in BELOW_THE_RULES, f"{name_of(path)} imports {module}"
        assert first not in IMPURE, f"{name_of(path)} imports {module}"


def test_a_stranger_who_writes_a_backend_has_few_verbs_to_learn() -> None:
    (protocol,) = [
        node
        for node in ast.walk(parsed(SRC / "port" / "__init__.py"))
        if isinstance(node, ast.ClassDef) and node.name == "Backend"
    ]
    verbs = [node.name for node in protocol.body if isinstance(node, ast.FunctionDef)]
    assert len(verbs) <= MAX_VERBS, verbs
    assert {"read", "write", "state", "close"} <= set(verbs)
    assert all(ast.get_docstring(node) for node in protocol.body if isinstance(node, ast.FunctionDef))


# the nets themselves


def test_a_refusal_is_noticed_however_it_is_named() -> None:
    for text in (
        "from backstay.errors import ConflictError",
        "from backstay import errors\nraise errors.FencedError('x')",
        "def f() -> 'LeaseHeldError': ...",
        "import backstay.errors.NotFoundError",
    ):
        assert {name for _, name in names_in(ast.parse(text))} & REFUSALS, text
    for text in ("raise CorruptionError('a ConflictError')", "try: pass\nexcept apsw.MismatchError: pass"):
        assert not {name for _, name in names_in(ast.parse(text))} & REFUSALS, text


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('"SELECT n % 16 FROM rows"', ["16"]),
        ('"UPDATE rows SET until = now() - lease / 20"', ["20"]),
        ('"SELECT coalesce(max(n) + 1, 0) FROM rows WHERE sid = ?2 AND kind = $3 LIMIT 1"', []),
        ("\"SELECT body::int8, sha256(body) FROM x2 WHERE t = '24 hours'\"", []),
        ('"there are 16 of them"', []),
        ('"SELECT key >> 32, key << 32, now() * 1000000 FROM rows WHERE kind = 2 LIMIT 500"', []),
        ('"DELETE FROM rows WHERE length(body) >= 4096 OR n < 7"', ["4096", "7"]),
        ('f"SELECT {columns} - 200 FROM rows"', ["200"]),
        ('SHARE = 20\nf"SELECT a / {SHARE} FROM rows"', ["SHARE"]),
        ('TABLE = "rows"\nf"SELECT a FROM {TABLE}"', []),
        ('"SELECT a FROM b WHERE c LIKE %s AND d %% 16 = 0"', ["16"]),
        ('"PRAGMA cache_size = 2000"', []),
        ('"CREATE FUNCTION f() AS $$ BEGIN -- at most 16\\n RETURN; END $$"', []),
    ],
)
def test_a_number_that_we_chose_is_noticed(text: str, found: list[str]) -> None:
    assert [number for _, number in numbers_in_sql(ast.parse(text))] == found
