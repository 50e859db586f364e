"""Links of a built site: each page, file and anchor that one leads to is there. Nothing is asked of other sites."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urljoin, urlsplit

from tests.browser.serving import PREFIX, pages_of

# Files of this repository, which a page shows on the forge.
TREE = ("/blob/main/", "/tree/main/")
# By these the theme knows which pictures to show in the light and which in the dark.
_SCHEMES = ("#only-light", "#only-dark")
_ATTRIBUTES = {"a": "href", "link": "href", "img": "src", "script": "src", "source": "src", "object": "data"}


class Page(NamedTuple):
    """What a page leads to, and what can be led to in it."""

    links: list[str]
    anchors: set[str]


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.page = Page([], {"", "__top"})

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        link = attributes.get(_ATTRIBUTES.get(tag, ""))
        if link and tag == "img":
            for scheme in _SCHEMES:
                link = link.removesuffix(scheme)
        if link and attributes.get("rel") != "canonical":
            self.page.links.append(link)
        if name := attributes.get("id") or (attributes.get("name") if tag == "a" else None):
            self.page.anchors.add(name)


def read(html: str) -> Page:
    """Returns the links and anchors of a page."""
    reader = _Reader()
    reader.feed(html)
    return reader.page


def broken_links(folder: Path, tree: Path, repository: str) -> dict[str, list[str]]:
    """Returns the links that lead nowhere, by page.

    Args:
        folder: The built site.
        tree: The repository's root. Links to its files on the forge are looked up there.
        repository: The repository's address on the forge.
    """
    pages = {address: read(_file(folder, address).read_text()) for address in pages_of(folder)}
    found = {address: list(dict.fromkeys(page.links)) for address, page in pages.items()}
    broken = {
        address: [link for link in links if not _leads_somewhere(link, address, folder, pages, tree, repository)]
        for address, links in found.items()
    }
    return {address: links for address, links in broken.items() if links}


def _file(folder: Path, address: str) -> Path:
    return folder / (f"{address}index.html" if address == "" or address.endswith("/") else address)


def _leads_somewhere(
    link: str, address: str, folder: Path, pages: dict[str, Page], tree: Path, repository: str
) -> bool:
    if link.startswith(repository):
        rest = link.removeprefix(repository).partition("#")[0]
        return not rest.startswith(TREE) or (tree / unquote(rest.split("/", 3)[3])).exists()
    parts = urlsplit(urljoin(f"http://site{PREFIX}{address}", link))
    if parts.netloc != "site" or parts.scheme != "http":
        return parts.scheme in ("http", "https", "mailto", "data")
    if not parts.path.startswith(PREFIX):
        return False
    target = unquote(parts.path.removeprefix(PREFIX))
    if target in pages:
        return unquote(parts.fragment) in pages[target].anchors or _belongs_to_a_script(parts.fragment)
    return not parts.fragment and (folder / target).is_file()


def _belongs_to_a_script(fragment: str) -> bool:
    """Material's search highlights words by such a fragment, and code lines have theirs."""
    return fragment.startswith("__")
