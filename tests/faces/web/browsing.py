"""A real browser, where there is one: Chromium, driven by playwright, with everything that it asks for written down."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from tests.faces.web.serving import TOKEN

NAMED = "BACKSTAY_TEST_CHROMIUM"
PLACES = ("chromium", "chromium-browser", "google-chrome")
# No network of its own: what a page asks for that is not this computer is not found.
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
]


def found() -> str | None:
    """Where Chromium is."""
    return os.environ.get(NAMED) or next((path for name in PLACES if (path := shutil.which(name))), None)


needs_browser = pytest.mark.skipif(
    found() is None, reason=f"no Chromium: `apt-get install chromium`, or name one in {NAMED}"
)


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=found(), args=FLAGS)
        yield launched
        launched.close()


class Reader:
    """A person before a browser that was let in. `troubles` has what no page of ours may cause."""

    def __init__(self, context: BrowserContext, port: int) -> None:
        self.at = f"http://127.0.0.1:{port}"
        self.context, self.troubles = context, list[str]()
        self.page = context.new_page()
        self.page.set_default_timeout(20_000)
        self.page.on("console", self._heard)
        self.page.on("pageerror", lambda error: self.troubles.append(f"error: {error}"))
        self.page.on("dialog", self._interrupted)
        self.page.on("request", self._asked)
        self.go(f"/enter?token={TOKEN}")

    def _heard(self, message: Any) -> None:
        if message.type in ("error", "warning") and "404" not in message.text:
            self.troubles.append(f"console: {message.text}")

    def _interrupted(self, dialog: Any) -> None:
        self.troubles.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _asked(self, request: Any) -> None:
        if not request.url.startswith((self.at, "data:")):
            self.troubles.append(f"asked for {request.url}")

    def go(self, path: str) -> Page:
        self.page.goto(self.at + path)
        return self.page

    def sees(self, text: str, **options: Any) -> None:
        self.page.get_by_text(text, **options).first.wait_for()

    def goes_from_change_to_change(self) -> None:
        """By button and by key, in a difference that is longer than the window: each is seen, in order, and back."""
        self.page.set_viewport_size({"width": 1400, "height": 400})
        seen = []
        for step in ("Next change", "Next change", "n", "p"):
            if len(step) == 1:
                self.page.keyboard.press(step)
            else:
                self.page.get_by_role("link", name=step).click()
            seen.append(self.page.evaluate("document.activeElement.id"))
            top = self.page.locator(f"#{seen[-1]}").bounding_box()
            assert top is not None
            assert 0 < top["y"] < 400
        assert seen == ["x1", "x2", "x3", "x2"]
        self.page.set_viewport_size({"width": 1400, "height": 900})

    def ends(self) -> None:
        assert self.troubles == []
        self.context.close()


@contextlib.contextmanager
def reader(opened: Browser, port: int, *, width: int = 1400, scheme: Any = "light", **options: Any) -> Iterator[Reader]:
    context = opened.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, **options)
    person = Reader(context, port)
    yield person
    person.ends()
