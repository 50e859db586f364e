"""Each kind of mistake is found on a page that has it, and a sound page has none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser import chromium
from tests.browser.looking import SCHEMES, WIDTHS, look_at
from tests.browser.serving import pages_of, served

pytest.importorskip("playwright")
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.browser,
    pytest.mark.skipif(chromium.executable() is None, reason=chromium.MISSING),
]

PAGE = """<!doctype html><html lang="en"><head><title>x</title><link rel="icon" href="data:,"></head>
<body><main><article>{}</article></main></body></html>"""
SOUND = '<h1>A page</h1><p>Some words.</p><pre style="overflow: auto">{}</pre>'.format("wide " * 200)
FLAWS = {
    "missing": ('<img src="none.png" alt="a">', "missing image: none.png"),
    "late": ('<p style="height: 9000px"></p><img loading="lazy" src="none.png" alt="a">', "missing image: none.png"),
    "silent": ('<img src="data:image/gif;base64,R0lGODlhAQABAAAAACw=">', "image without alternative text"),
    "console": ("<script>console.error('oh')</script>", "console: oh"),
    "script": ("<script>throw new Error('ah')</script>", "script: ah"),
    "request": ('<img src="http://127.0.0.2:9/x.png" alt="a">', "request to another site: http://127.0.0.2:9/x.png"),
    "wide": ('<p style="width: 700px">Far</p>', "light, 390 px: scrolls sideways"),
    "word": ('<table style="width: 3em; table-layout: fixed"><tr><td style="overflow-wrap: anywhere">'
             "MirroredStrategy</td></tr></table>", "broken word in a table: MirroredStrategy"),
    "pale": ('<p style="color: #ccc">Pale</p>', 'contrast of 1.6: <p> "Pale"'),
}  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    (folder / "index.html").write_text(PAGE.format(SOUND))
    for name, (body, _) in FLAWS.items():
        (folder / name).mkdir()
        (folder / name / "index.html").write_text(PAGE.format(body))
    return folder


@pytest.fixture(scope="module")
def found(site: Path) -> Iterator[dict[str, list[str]]]:
    path = chromium.executable()
    assert path is not None
    with served(site) as index, chromium.browser(path) as browser:
        yield {page: look_at(browser, index, page, site / "pictures") for page in pages_of(site)}


def test_a_sound_page_has_no_problem(found: dict[str, list[str]]):
    assert found[""] == []


@pytest.mark.parametrize("name", FLAWS)
def test_a_flaw_is_found(found: dict[str, list[str]], name: str):
    assert any(FLAWS[name][1] in problem for problem in found[f"{name}/"]), found[f"{name}/"]


def test_a_page_that_is_wide_for_a_telephone_only(found: dict[str, list[str]]):
    assert {problem.split(":")[0] for problem in found["wide/"]} == {"light, 390 px", "dark, 390 px"}


def test_each_width_and_scheme_has_a_picture(found: dict[str, list[str]], site: Path):
    pictures = {file.name for file in (site / "pictures").glob("index-*")}
    assert pictures == {f"index-{width}-{scheme}.jpeg" for width in WIDTHS for scheme in SCHEMES}
