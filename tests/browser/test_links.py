"""A link that leads nowhere is found: to a page, a file, an anchor, a file of the repository."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.browser.links import broken_links

pytestmark = pytest.mark.nightly

REPOSITORY = "https://example.org/r"


def test_broken_links(tmp_path: Path):
    site, tree = tmp_path / "site", tmp_path / "tree"
    (site / "a").mkdir(parents=True)
    tree.mkdir()
    (tree / "file.py").touch()
    (site / "style.css").touch()
    (site / "a.svg").touch()
    sound = [
        "a/", "./", "#here", "a/#there", "style.css", "https://elsewhere.org", "mailto:x@example.org",
        f"{REPOSITORY}", f"{REPOSITORY}/blob/main/file.py#L3", f"{REPOSITORY}/issues", "/replicax/a/",
    ]  # fmt: skip
    broken = [
        "b/", "a/#here", "#nowhere", "none.css", f"{REPOSITORY}/blob/main/none.py", "/elsewhere/", "../..",
        "javascript:x()",
    ]  # fmt: skip
    pictures = '<img src="none.png"><img src="a.svg#only-dark"><img src="b.svg#only-dark">'
    anchors = f'<h1 id="here">x</h1>{pictures}<link rel="canonical" href="/elsewhere/">'
    (site / "index.html").write_text(anchors + "".join(f'<a href="{link}">x</a>' for link in sound + broken))
    (site / "a" / "index.html").write_text('<a id="there" href="../#here">x</a>')
    assert broken_links(site, tree, REPOSITORY) == {"": ["none.png", "b.svg", *broken]}
