"""From a URL to a store. The only room that knows backends, by name; each is imported when it is asked for."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

from backstay.errors import InvalidInputError, NotFoundError, UnavailableError, UnsupportedError
from backstay.face import Store
from backstay.hints import Hint
from backstay.model import Durability
from backstay.port import Backend

_NAME_ONE = Hint(
    "name a store of your own: backstay.open('sqlite:///store.db')",
    "name a store of your own: --store sqlite:///store.db",
)

_NO_EXPORT = Hint("store.export(path) writes one", "`backstay export FILE` writes one")

_FOLDER = ".backstay"
_FILE = "store.db"
_EXPORT_SUFFIX = ".backstay"
_VARIABLE = "BACKSTAY_URL"
_IN_MEMORY = ":memory:"  # what SQLite calls a database without a file


def open(url: str | os.PathLike[str] | None = None, *, durability: Durability = "full") -> Store:
    """Open a store, making it if there is none.

    Without a URL: what the environment variable BACKSTAY_URL names; else the `.backstay/` here or in a parent folder,
    else made here. Missing folders on the way to a store are made. The path of an export opens it to be read.
    `durability="full"` survives power loss; `"relaxed"` survives kill -9 only, and is faster.

    ```python
    import backstay

    with backstay.open("sqlite:///agents.db") as store:
        store.session("ticket-42").commit({"messages": []})
    ```
    """
    if durability not in ("full", "relaxed"):
        message = f"durability is 'full' or 'relaxed', not {durability!r}"
        raise InvalidInputError(message)
    if url is None:
        url = os.environ.get(_VARIABLE) or None  # one that is empty names nothing
    return Store(_backend(url, durability))


def _backend(url: str | os.PathLike[str] | None, durability: str) -> Backend:
    if url is None:
        return _sqlite(_find_folder() / _FILE, durability)
    if isinstance(url, os.PathLike):
        named = Path(url)
        if named.suffix == _EXPORT_SUFFIX and not os.path.lexists(named):
            raise NotFoundError(f"there is no export {named}", hint=_NO_EXPORT)
        return _sqlite(named, durability)
    if not url or not isinstance(url, str):
        message = f"a store is named by a URL or a path, not {url!r}"
        raise InvalidInputError(message, hint=_FORMS)
    scheme, colon, rest = url.partition(":")
    if scheme == "memory" and colon:
        if rest not in ("", "//"):
            message = f"{url!r}: a memory store has no path"
            raise InvalidInputError(message, hint="use 'memory://'")
        return _memory()
    if scheme == "sqlite" and colon:
        path = _sqlite_path(url, rest)
        return _memory() if path is None else _sqlite(path, durability)
    if scheme == "file" and colon:
        return _files(_folder_path(url, rest), durability)
    if scheme in ("postgresql", "postgres") and colon:
        return _postgres(url, durability)
    if "://" not in url and (url.endswith(".db") or is_export(url)):
        return _sqlite(Path(url), durability)
    message = f"{url!r} names no store"
    raise InvalidInputError(message, hint=_inside(url) or _FORMS)


def _inside(url: str) -> str | None:
    """A hint where a folder was named and the store is in it."""
    for file in (Path(url) / _FILE, Path(url) / _FOLDER / _FILE):
        if os.path.isfile(file):  # noqa: PTH113 - False also where a folder may not be looked into
            return f"the store in this folder is {str(file)!r}"
    return None


_FORMS = (
    "use 'sqlite:///store.db', a path ending in .db, the path of an export, 'file:folder', 'postgresql://…', "
    "or 'memory://'"
)


def _sqlite_path(url: str, rest: str) -> Path | None:
    """The file that a URL names; None for `sqlite:///:memory:`, which is a store in memory."""
    parts = urlsplit(url)
    if not rest.startswith("///") or parts.query or parts.fragment:
        message = f"{url!r} is not a SQLite URL"
        raise InvalidInputError(message, hint="use 'sqlite:///relative.db' or 'sqlite:////absolute.db'")
    path = unquote(rest[3:])
    if not path or "\0" in path:
        message = f"{url!r} has no path"
        raise InvalidInputError(message, hint="use 'sqlite:///relative.db' or 'sqlite:////absolute.db'")
    return None if path == _IN_MEMORY else Path(path)


def _sqlite(path: Path, durability: str) -> Backend:
    from backstay.backends.sqlite import SqliteBackend, store_file

    if store_file.is_export(_usable(path)):
        return SqliteBackend.open_export(path)
    _make_parents(path)
    return SqliteBackend(path, durability=durability)


def _make_parents(path: Path) -> None:
    """The folders above a store that are missing, private to the user."""
    missing: list[Path] = []
    try:
        for folder in path.parents:
            if folder.exists() or folder.is_symlink():
                break
            missing.append(folder)
    except OSError:
        return  # a folder that may not be looked into: the backend says what is wrong with the path
    for made in reversed(missing):
        try:
            made.mkdir(mode=0o700, exist_ok=True)  # another process may make the same one
            if made.name == _FOLDER:
                _keep_from_git(made)
        except OSError as error:
            message = f"{made} cannot be made: {error.strerror}"
            raise UnavailableError(message, hint="name a store in a folder of yours", retryable=False) from error


def is_export(path: str) -> bool:
    """True for a file that `store.export` wrote, whatever it is called; it is opened to be read."""
    if "\0" in path or not Path(path).is_file():
        return False
    from backstay.backends.sqlite import store_file

    return store_file.is_export(Path(path))


def _folder_path(url: str, rest: str) -> Path:
    """`file:dir` is relative, `file:/dir` and `file:///dir` are absolute; another machine's files are nobody's."""
    parts = urlsplit(url)
    path = unquote(rest.removeprefix("//"))
    if not path or parts.netloc not in ("", "localhost") or parts.query or parts.fragment:
        message = f"{url!r} is not the URL of a folder"
        raise InvalidInputError(message, hint="use 'file:relative/folder' or 'file:///absolute/folder'")
    return Path(path.removeprefix("localhost"))


def _files(path: Path, durability: str) -> Backend:
    from backstay.backends.files import FilesBackend

    _make_parents(_usable(path))
    return FilesBackend(path, durability=durability)


def _postgres(url: str, durability: str) -> Backend:
    """`?schema=` is ours; all else is libpq's. The URL is in no message: it may hold a password."""
    address, _, query = url.partition("?")
    words = [word for word in query.split("&") if word]
    ours = [unquote(word.removeprefix("schema=")) for word in words if word.startswith("schema=")]
    if not address.partition(":")[2].startswith("//") or len(ours) > 1:
        message = "this is not the URL of a PostgreSQL database, or it names several schemas"
        raise InvalidInputError(message, hint="use 'postgresql://user@host/database?schema=name'")
    try:
        from backstay.backends.postgres import PostgresBackend
    except ImportError as error:
        message = "PostgreSQL needs the driver psycopg, which is not installed"
        raise UnsupportedError(message, hint="pip install 'backstay[postgres]'") from error
    theirs = "&".join([word for word in words if not word.startswith("schema=")])
    conninfo = f"{address}?{theirs}" if theirs else address
    return PostgresBackend(conninfo, schema=ours[0] if ours else "backstay", durability=durability)


def _usable(path: Path) -> Path:
    try:
        usable = "\0" not in str(path) and bool(str(path).encode())
    except UnicodeEncodeError:
        usable = False
    if not usable:
        message = f"{str(path)!r} cannot be the path of a store: it contains NUL or is not UTF-8"
        raise InvalidInputError(message)
    return path


def _memory() -> Backend:
    from backstay.backends.memory import MemoryBackend

    return MemoryBackend()


def place(url: str | os.PathLike[str] | None = None) -> Path | None:
    """The file or folder that a URL names; None for one that names neither. Nothing is made.

    Without a URL: the file in the nearest `.backstay/`, None if there is no such folder here or above.
    """
    if url is None:
        found = nearest_folder(Path.cwd())
        return None if found is None else found / _FILE
    if isinstance(url, os.PathLike):
        return Path(url)
    scheme, colon, rest = url.partition(":")
    if colon and scheme == "sqlite":
        return _sqlite_path(url, rest)
    if colon and scheme == "file":
        return _folder_path(url, rest)
    return Path(url) if "://" not in url and (url.endswith(".db") or is_export(url)) else None


def file_system(folder: Path) -> tuple[str | None, bool]:
    """The type of the file system that holds a folder (None if unknown), and whether other machines serve it."""
    from backstay.backends.sqlite import file_system as disks

    kind = disks.filesystem_of(folder)
    return kind, disks.is_network(kind)


def nearest_folder(here: Path) -> Path | None:
    """The nearest `.backstay/` with a store in it; if none has one, the nearest, which a workspace may have made."""
    folders = [folder / _FOLDER for folder in (here, *here.parents) if (folder / _FOLDER).is_dir()]
    for found in [folder for folder in folders if (folder / _FILE).exists()] or folders:
        _refuse_planted(found)
        return found
    return None


def _find_folder() -> Path:
    """The nearest `.backstay/`, like git finds `.git`; made here, private to the user, if there is none."""
    return nearest_folder(Path.cwd()) or make_folder(Path.cwd())


def _keep_from_git(made: Path) -> None:
    from backstay.workspace.git_ignore import keep_from_git  # most stores are there already

    keep_from_git(made)


def make_folder(here: Path) -> Path:
    """A `.backstay/` in a folder, private to the user; the one that is there already, if it is theirs."""
    made = here / _FOLDER
    try:
        made.mkdir(mode=0o700)
        _keep_from_git(made)
    except FileExistsError:
        # Another process may have made it a moment ago; then it is as good as ours.
        if not made.is_dir():
            message = f"{made} is not a folder"
            raise InvalidInputError(message, hint="move it away, or name a store: 'sqlite:///store.db'") from None
        _refuse_planted(made)
    except OSError as error:
        message = f"{made} cannot be made: {error.strerror}"
        raise UnavailableError(message, hint="name a store: 'sqlite:////path/to/store.db'", retryable=False) from error
    return made


def _refuse_planted(folder: Path) -> None:
    """UnsupportedError for a folder that was found, not named, and that another user made, or that leads elsewhere."""
    if folder.is_symlink():
        message = f"{folder} is a link"
        raise UnsupportedError(message, hint=_NAME_ONE)
    owner = folder.stat().st_uid
    if hasattr(os, "geteuid") and owner != os.geteuid():
        message = f"{folder} belongs to another user"
        raise UnsupportedError(message, hint=_NAME_ONE)
