"""The door: who may come in. Everything is refused here before any page is asked.

Threats: another web page in the same browser (forged requests, DNS rebinding), another user of the machine, a guess.
A visitor comes with the token that was printed, once; from then on a cookie stands for it that no other page can read
or make the browser send. `Host` must be this server's own name, so that a foreign name bound to 127.0.0.1 finds
nothing. A write needs this server's own `Origin` as well.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Iterable
from typing import NamedTuple

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types backstay"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",  # with "no-referrer" a browser would post forms with the origin `null`
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
TOKEN_BYTES = 24
_READS, _WRITES = ("GET", "HEAD"), ("POST",)
_OWN_SITES = (None, "none", "same-origin")


class Refused(NamedTuple):
    """Why a request is turned away: an HTTP status and a sentence."""

    status: int
    why: str


class Door:
    """Decides on each request by its method and headers. `hosts` are the names that this server answers to."""

    def __init__(self, token: str, port: int, hosts: Iterable[str]) -> None:
        self._token = token
        self._secret = secrets.token_urlsafe(TOKEN_BYTES)  # another than the token: a cookie never shows in an address
        self.cookie_name = f"backstay-{port}"  # cookies do not know ports
        self._hosts = frozenset(f"{host}:{port}" for host in hosts)

    @property
    def set_cookie(self) -> str:
        """The header that lets a browser in."""
        return f"{self.cookie_name}={self._secret}; HttpOnly; SameSite=Strict; Path=/"

    def opens_with(self, token: str) -> bool:
        """True for the token that was printed; takes as long for any other."""
        return hmac.compare_digest(token.encode("utf-8", "replace"), self._token.encode())

    def refusal(self, method: str, headers: list[tuple[bytes, bytes]], *, entering: bool = False) -> Refused | None:
        """Why this request is turned away, or None. Only with `entering` it may come without a cookie."""
        hosts = [value.decode("latin-1") for name, value in headers if name == b"host"]
        if len(hosts) != 1 or hosts[0].lower() not in self._hosts:
            return Refused(421, "This is not the name of this server.")
        if method not in _READS + _WRITES or (entering and method not in _READS):
            return Refused(405, "Pages are read with GET and acted on with POST.")
        said = {name: value.decode("latin-1") for name, value in headers}
        if said.get(b"sec-fetch-site") not in _OWN_SITES:
            return Refused(403, "Another page asked for this.")
        origin = said.get(b"origin")
        if origin is not None and origin.lower() != f"http://{hosts[0].lower()}":
            return Refused(403, "Another page asked for this.")
        if method in _WRITES and origin is None:
            return Refused(403, "A change needs the origin of this page.")
        if not entering and not self._knows([value for name, value in headers if name == b"cookie"]):
            return Refused(403, "Open the address that `backstay web` printed: it lets this browser in.")
        return None

    def _knows(self, cookies: list[bytes]) -> bool:
        # By hand, because the library's parser gives up at a cookie that is malformed, and every other server on this
        # machine may have left one.
        parts = [part.strip().partition(b"=") for cookie in cookies for part in cookie.split(b";")]
        given = [value for name, _, value in parts if name == self.cookie_name.encode()]
        return any([hmac.compare_digest(value, self._secret.encode()) for value in given])
