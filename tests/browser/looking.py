"""One page in a browser: at three widths, in light and in dark, with what is wrong and a picture of each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page, Request, Response

WIDTHS = {390: 844, 768: 1024, 1280: 800}  # a telephone, a tablet and a laptop, with their heights
SCHEMES = {"light": "default", "dark": "slate"}  # the reader's setting and what the theme calls it
DEADLINE_MS = 120_000  # of a page or a picture; a loaded machine takes its time
HIGHEST = 6000  # pixels of a picture; the rest of a longer page is not in it

_LOOK = (Path(__file__).parent / "look.js").read_text()


def look_at(browser: Browser, index: str, address: str, pictures: Path | None = None) -> list[str]:
    """Returns what is wrong with a page, each with the scheme and the width where it is seen.

    Args:
        browser: A browser.
        index: The address of the site's index.
        address: The page's, under it.
        pictures: A folder for a picture of each width and scheme.
    """
    problems: list[str] = []
    for scheme, theme in SCHEMES.items():
        with _page(browser, scheme, index, problems) as page:
            page.goto(index + address, wait_until="load", timeout=DEADLINE_MS)
            shown = page.evaluate("document.body.getAttribute('data-md-color-scheme')")
            if shown not in (theme, None):
                problems.append(f"{scheme}: the page is shown in the scheme {shown!r}, not {theme!r}")
            for width, height in WIDTHS.items():
                page.set_viewport_size({"width": width, "height": height})
                found = page.evaluate(_LOOK)
                problems.extend(f"{scheme}, {width} px: {problem}" for problem in found)
                if pictures is not None:
                    _picture(page, width, pictures / f"{_name(address)}-{width}-{scheme}.jpeg")
    return list(dict.fromkeys(problems))


@contextmanager
def _page(browser: Browser, scheme: str, index: str, problems: list[str]) -> Iterator[Page]:
    """Opens a page that writes into `problems` what its console, its scripts and its requests report."""
    home = urlsplit(index).netloc
    context = browser.new_context(color_scheme=scheme, reduced_motion="reduce")

    def on_console(message: ConsoleMessage) -> None:
        if message.type == "error":
            problems.append(f"console: {message.text}")

    def on_request(request: Request) -> None:
        parts = urlsplit(request.url)
        if parts.scheme in ("http", "https") and parts.netloc != home:
            problems.append(f"request to another site: {request.url}")

    def on_response(response: Response) -> None:
        if response.status >= 400:
            problems.append(f"answered with {response.status}: {urlsplit(response.url).path}")

    try:
        page = context.new_page()
        page.on("console", on_console)
        page.on("pageerror", lambda error: problems.append(f"script: {error}"))
        page.on("request", on_request)
        page.on("response", on_response)
        yield page
    finally:
        context.close()


def _picture(page: Page, width: int, file: Path) -> None:
    height = min(HIGHEST, page.evaluate("document.documentElement.scrollHeight"))
    file.parent.mkdir(parents=True, exist_ok=True)
    clip = {"x": 0, "y": 0, "width": width, "height": height}
    page.screenshot(
        path=file,
        type="jpeg",
        quality=70,
        full_page=True,
        clip=clip,
        animations="disabled",
        timeout=DEADLINE_MS,
    )


def _name(address: str) -> str:
    return address.strip("/").removesuffix(".html").replace("/", "-") or "index"
