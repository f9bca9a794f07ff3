"""Text that means harm, in every place that a page shows: ids, titles, agents, branches, tags, messages, arguments."""

from __future__ import annotations

import itertools
from typing import Any

import backstay
from backstay.shapes.text import safe

_ATTACKS = [
    "<script>alert(1)</script>",
    "</script><script>alert(2)</script>",
    "<img src=x onerror=alert(3)>",
    "<svg onload=alert(4)>",
    '"><svg/onload=alert(5)>',
    "' onmouseover='alert(6)",
    "javascript:alert(7)",
    "data:text/html,<script>alert(8)</script>",
    "<iframe src=javascript:alert(9)>",
    "<a href=javascript:alert(10)>x</a>",
    "<style>*{display:none}</style>",
    "<base href=//evil.example/>",
    "<link rel=stylesheet href=//evil.example/x.css>",
    "<form action=//evil.example><input type=submit></form>",
    "<meta http-equiv=refresh content=0;url=//evil.example>",
    "<!--", "-->", "]]>", "<![CDATA[", "</textarea><script>alert(11)</script>", "</title><script>alert(12)</script>",
    "{{ 7*7 }}", "{% raw %}", "${7*7}", "#{7*7}", "<%= 7*7 %>",
    "&lt;b&gt;", "&#x202e;", "&", "%00", "%0d%0aSet-Cookie: x=1", "\r\nSet-Cookie: x=1",
    "..", ".", "../../etc/passwd", "~", "~~", "~.", "/", "//", "\\", "?x=1", "#x", "a/b/c", " ", "%2e%2e", "%", "%%%",
    "\u202eevil\u202c", "\u2066x\u2069", "\u200b\u200c\u200d", "\ufeff", "\u00ad", "e" + "\u0301" * 40,
    "\x01\x02\x1b[31mred", "\x7f\x9b", "tab\there", "new\nline", "日本語のセッション", "👩‍👩‍👧 family", "שלום עולם",
    "x" * 256, "W" * 200, "a b  c", "'\"`$(id)", "<b>bold</b>", "null", "None", "undefined", "NaN", "-1", "0",
]  # fmt: skip
_AROUND = ["{}", "x {} y", "{}{}", "<p>{}</p>", '"{}"', "'{}'", "={}"]
TEXTS = [
    text
    for text in dict.fromkeys(form.replace("{}", attack)[:256] for form, attack in itertools.product(_AROUND, _ATTACKS))
    if text and "\0" not in text
][:500]
LONG = "line of a megabyte " * 55_000
SURROGATES = "half \ud83d a pair"


def make(store: backstay.Store) -> list[str]:
    """A session for each text, and one with all of them; the texts of its first messages, as a page shall show them."""
    for text in TEXTS:
        session = store.session(text, agent=text[:200], title=text, owner=text)
        session.commit({"messages": [{"role": text, "content": text}], text: text}, label=text, trigger=text[:100])
    session = store.session("all")
    messages: list[Any] = []
    for number, text in enumerate(TEXTS):
        call = {"id": f"c{number}{text}", "name": text, "args": {text: text}}
        messages += [
            {"role": "user", "content": text},
            {"role": "assistant", "content": text, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": text},
        ]
        if number % 10 == 0:
            session.append(messages, summary=text)
            messages = []
        else:
            session.append(messages[-1:], summary=text)
            messages = []
    session.append([{"role": "user", "content": LONG}, {"role": "user", "content": SURROGATES}])
    for number, text in enumerate(TEXTS[::25]):
        session.fork("main~1", f"{text[:250]}b{number}" if text in ("main", "all") else text[:256])
        session.tag("main~2", f"t{number}{text[:200]}")
    session.fork("main~1", "calls")
    with store.run("all", branch="calls") as run:
        for number, text in enumerate(TEXTS[::5]):
            run.call(text, lambda text=text: text, key=f"k{number}", args={text: text})
    session.tag("calls", "of-calls")
    return [safe(line) for text in TEXTS[:50] for line in text.replace("\r\n", "\n").replace("\t", " ").split("\n")]
