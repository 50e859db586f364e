"""The page of examples has all of them, each with its time and its output, as `benchmarks/gallery.py` measured them."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
HELPERS = {"dtensor_schemes/scheme.py"}  # what the files beside it share


@pytest.fixture(autouse=True)
def on_the_path(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


def test_every_example_is_in_the_gallery():
    import gallery

    files = {str(file.relative_to(ROOT / "examples")) for file in (ROOT / "examples").rglob("*.py")}
    assert {example.file for examples in gallery.SECTIONS.values() for example in examples} == files - HELPERS


def test_every_example_has_been_measured():
    import gallery

    commands = {example.command for examples in gallery.SECTIONS.values() for example in examples}
    measurements = gallery.known()
    assert set(measurements) == commands
    assert all(found.seconds > 0 and found.output for found in measurements.values())


def test_the_page_is_what_was_measured():
    import gallery

    assert gallery.page(gallery.known()) == gallery.PAGE.read_text(), "python benchmarks/gallery.py --page"


def test_an_example_that_fails_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    import gallery

    monkeypatch.setattr(gallery, "ROOT", tmp_path)
    with pytest.raises(RuntimeError, match=r"python examples/none.py ended with 2"):
        gallery.measured(gallery.Example("none.py"))
