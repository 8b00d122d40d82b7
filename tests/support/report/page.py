"""A report's page, parsed and checked."""

from __future__ import annotations

import re
from base64 import b64encode
from collections import Counter
from hashlib import sha256
from html.parser import HTMLParser


class Page(HTMLParser):
    """Checks that tags nest, and collects tags, attributes and text."""

    VOID = frozenset({"meta", "br", "input"})

    def __init__(self, source: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.bars: list[float] = []  # how long they are
        self.text = ""
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.feed(source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag == "script":
            self.scripts.append((dict(attrs), ""))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        found = dict(attrs)
        if tag == "rect" and found.get("class") in ("before", "after", "saves", "costs"):
            self.bars.append(float(found["width"] or ""))
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["script"]:
            self.scripts[-1] = (self.scripts[-1][0], self.scripts[-1][1] + data)
        elif "style" not in self.open:
            self.text += data


def check_self_contained(source: str) -> Page:
    """The page has no link to elsewhere, and runs its own script only: no browser is needed to see
    that. Identifiers are unique, and every link leads to one."""
    read = Page(source)
    assert {"link", "iframe", "img", "object", "use"}.isdisjoint(read.tags)
    assert not [(n, v) for n, v in read.attributes if n == "src" or n.startswith("on")]
    assert not re.search(r"url\(|@import|https?:(?!//www\.w3\.org/)", source)
    (code,) = (text for about, text in read.scripts if "type" not in about)
    digest = b64encode(sha256(code.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    assert ("content", policy) in read.attributes
    ids = Counter(v for n, v in read.attributes if n == "id")
    assert [name for name, count in ids.items() if count > 1] == []
    assert {v for n, v in read.attributes if n == "href"} <= {f"#{name}" for name in ids}
    return read
