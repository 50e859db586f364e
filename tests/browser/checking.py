"""All pages of a built site, looked at by several browsers, with the links of all."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import re
from collections.abc import Sequence
from pathlib import Path

from tests.browser.chromium import browser
from tests.browser.links import broken_links
from tests.browser.looking import look_at
from tests.browser.serving import pages_of, served

ROOT = Path(__file__).resolve().parent.parent.parent
PROCESSES = 2


def repository() -> str:
    """Returns the repository's address on the forge, as mkdocs.yml has it."""
    found = re.search(r"^repo_url: (\S+)", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert found, "mkdocs.yml has no repo_url"
    return found[1]


def problems_of(site: Path, chromium: str, pictures: Path | None = None, only: str = "") -> dict[str, list[str]]:
    """Returns what is wrong with the pages of a built site: by page, also those with nothing.

    Args:
        site: The folder of the site.
        chromium: Where Chromium is.
        pictures: A folder for pictures.
        only: Looks at those pages whose address contains it.
    """
    pages = [page for page in pages_of(site) if only in (page or "index")]
    found: dict[str, list[str]] = {page: [] for page in pages}
    for page, links in broken_links(site, ROOT, repository()).items():
        if page in found:
            found[page].extend(f"broken link: {link}" for link in links)
    with served(site) as index:
        context = multiprocessing.get_context("spawn")  # A browser belongs to its thread, and so does its loop.
        with concurrent.futures.ProcessPoolExecutor(PROCESSES, mp_context=context) as pool:
            shares = [pages[start::PROCESSES] for start in range(PROCESSES)]
            for looked in pool.map(_look, [chromium] * PROCESSES, [index] * PROCESSES, shares, [pictures] * PROCESSES):
                for page, problems in looked.items():
                    found[page].extend(problems)
    return found


def _look(chromium: str, index: str, pages: Sequence[str], pictures: Path | None) -> dict[str, list[str]]:
    with browser(chromium) as started:
        return {page: look_at(started, index, page, pictures) for page in pages}
