"""What a page is given and what it gives back; and how that becomes HTML or JSON."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from importlib import resources
from typing import TYPE_CHECKING, Any, NamedTuple

import jinja2

from backstay import __version__, shapes
from backstay.web import words
from backstay.web.paths import Links

if TYPE_CHECKING:
    from pathlib import Path

    from backstay.face import Session, Store
    from backstay.web.jobs import Jobs

_MAX_NOTICES = 100


class Notice(NamedTuple):
    """What was done, or why not: tone is good, wait or bad. `undo` is (session, branch, head), for its button."""

    tone: str
    title: str
    text: str = ""
    undo: tuple[str, str, str] | None = None


class Notices:
    """The newest notices, by a key that stands in the address of the page that shows one."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Notice] = OrderedDict()
        self._count = 0

    def keep(self, notice: Notice) -> str:
        """Keep a notice; its key."""
        self._count += 1
        key = str(self._count)
        self._kept[key] = notice
        while len(self._kept) > _MAX_NOTICES:
            self._kept.popitem(last=False)
        return key

    def get(self, key: str | None) -> Notice | None:
        """A notice, if it is still known."""
        return self._kept.get(key or "")


class AboutStore(NamedTuple):
    """What every page says of the store, and whether it can be written to from here."""

    name: str
    backend: str
    read_only: bool
    is_server: bool  # others write to it too, with the rights of its URL
    is_demo: bool = False
    place: Path | None = None  # its file or folder, if it has one here
    is_replaced: bool = False  # the file or folder there is another one now


class Visit(NamedTuple):
    """A request as a page needs it."""

    store: Store
    about: AboutStore
    parts: list[str]
    query: Mapping[str, str]
    several: Callable[[str], list[str]]
    jobs: Jobs
    notices: Notices

    def session(self) -> Session:
        """The session that the address names."""
        return self.store.session(self.parts[1])


class Shown(NamedTuple):
    """A page: its template and data, the way to it, and its JSON in the shapes of the command line."""

    template: str
    title: str
    crumbs: list[tuple[str, str | None]]
    data: dict[str, Any]
    shape: Callable[[], Any]
    status: int = 200
    streams: bool = False  # it is sent as it is made: part of its data is found on the way


def environment() -> jinja2.Environment:
    """The templates; every text that they print is made harmless, then escaped."""
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("backstay.web"),
        autoescape=True,
        finalize=words.harmless,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    made.filters.update(words.FILTERS)
    made.globals.update(status_of=words.status_of, call_mark=lambda word: words.CALL_MARKS.get(word, ("off", word)))
    return made


def html_of(made: jinja2.Environment, shown: Shown, visit: Visit, path: str) -> jinja2.environment.TemplateStream:
    """A page as HTML, in pieces."""
    return made.get_template(shown.template).stream(
        shown.data,
        title=shown.title,
        crumbs=shown.crumbs,
        about=visit.about,
        link=Links(),
        path=path,
        as_json=f"{path}{'&' if '?' in path else '?'}format=json",
        notice=visit.notices.get(visit.query.get("note")),
        verification=visit.jobs.verify.seen(),
        version=__version__,
    )


def json_of(shown: Shown) -> str:
    """A page as JSON."""
    return shapes.dump(shown.shape())


def static_file(name: str) -> bytes | None:
    """A file of static/, by its exact name."""
    folder = resources.files("backstay.web") / "static"
    return next((file.read_bytes() for file in folder.iterdir() if file.name == name and file.is_file()), None)
