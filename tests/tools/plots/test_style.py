"""The look of plots is that of the house inside of `style`, and everybody's own outside."""

from __future__ import annotations

import builtins
from pathlib import Path

import matplotlib
import pytest
from matplotlib.colors import to_rgb

import replicax as rx
from replicax.tools.plots.style import DARK, LIGHT, Palette, drawn


def contrast(one: str, other: str) -> float:
    """Returns the ratio of two colours' luminances, as WCAG defines it."""

    def luminance(color: str) -> float:
        parts = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in to_rgb(color)]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_nothing_of_the_look_stays():
    before = dict(matplotlib.rcParams)
    with rx.plots.style(dark=True) as colors:
        assert matplotlib.rcParams["axes.facecolor"] == colors.ground == DARK.ground
    assert dict(matplotlib.rcParams) == before


@pytest.mark.parametrize("colors", [LIGHT, DARK], ids=["light", "dark"])
def test_words_can_be_read_and_the_first_colours_seen(colors: Palette):
    assert min(contrast(each, colors.ground) for each in (colors.ink, colors.text)) > 4.5
    assert min(contrast(each, colors.ground) for each in colors.series[:3]) > 3


def test_a_file_is_the_same_again_and_one_that_cannot_be_written_is_named(tmp_path: Path):
    paths = [tmp_path / f"deep/{name}.svg" for name in "ab"]
    for path in paths:
        rx.plots.losses({"loss": [2.0, 1.0]}, path=path)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    with pytest.raises(rx.errors.ArgumentError, match=r"cannot be written to .*a\.words"):
        rx.plots.losses({"loss": [2.0, 1.0]}, path=tmp_path / "a.words")


def test_it_draws_on_axes_of_the_users():
    from matplotlib.figure import Figure

    figure = Figure()
    left, right = figure.subplots(1, 2)
    assert drawn(lambda axes, _: axes.plot([1, 2]), title="T", path=None, dark=False, axes=right) is figure
    assert (left.get_title(loc="left"), right.get_title(loc="left")) == ("", "T")


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch):
    real = builtins.__import__

    def importing(name: str, *args: object) -> object:
        if name.startswith("matplotlib"):
            raise ImportError("No module named 'matplotlib'")
        return real(name, *args)

    monkeypatch.setattr(builtins, "__import__", importing)
    with pytest.raises(rx.errors.ArgumentError, match=r"pip install 'replicax\[plots\]'"), rx.plots.style():
        pass


def test_a_notebook_shows_a_figure_although_nobody_has_imported_pyplot():
    picture, metadata = rx.plots.losses({"a": [2.0, 1.0]})._repr_png_()
    assert picture.startswith(b"\x89PNG")
    width = int.from_bytes(picture[16:20], "big")
    assert metadata == {"width": width // 2}
