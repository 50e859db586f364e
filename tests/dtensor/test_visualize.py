import io
import re
import xml.etree.ElementTree as ET

import jax
import pytest
from rich.console import Console

from replicax.dtensor import MATCH, UNSHARDED, Layout, create_mesh
from replicax.errors import LayoutError

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def cube():
    return create_mesh([("a", 2), ("b", 2), ("c", 2)])


def printed(picture, width, color_system=None):
    console = Console(file=io.StringIO(), width=width, color_system=color_system, force_terminal=True)
    console.print(picture)
    return console.file.getvalue()


def cells(text):
    """The devices named in a drawing, row by row."""
    rows = (re.findall(r"cpu [\d,…-]+", line) for line in text.splitlines() if line.startswith("│"))
    return [row for row in rows if row]


def rectangles(svg):
    boxes = [box for box in ET.fromstring(svg).iter(f"{SVG}rect") if box.get("x")]
    return [tuple(float(box.get(name)) for name in ("x", "y", "width", "height")) for box in boxes]


def test_each_part_is_a_cell_that_names_its_devices(mesh):
    grid = [[f"cpu {2 * row + column}" for column in range(2)] for row in range(4)]
    assert cells(str(Layout(["x", "y"], mesh).visualize())) == grid
    assert cells(str(Layout(["y", "x"], mesh).visualize())) == [list(column) for column in zip(*grid, strict=True)]
    assert cells(str(Layout(["x", UNSHARDED], mesh).visualize())) == [[f"cpu {i},{i + 1}"] for i in range(0, 8, 2)]
    assert cells(str(Layout(["y"], mesh).visualize())) == [["cpu 0,2,4,6", "cpu 1,3,5,7"]]
    assert cells(str(Layout([("y", "x")], mesh).visualize())) == [[f"cpu {i}" for i in (0, 2, 4, 6, 1, 3, 5, 7)]]


@pytest.mark.parametrize("rank", [0, 1, 2, 3])
def test_a_replicated_tensor_is_one_cell(mesh, rank):
    picture = Layout.replicated(mesh, rank).visualize()
    assert cells(str(picture)) == [["cpu 0-7"]]
    assert len(rectangles(picture.to_svg())) == 1


def test_cut_axes_bear_the_names_of_mesh_dimensions(mesh):
    text = str(Layout(["x", ("y",)], mesh).visualize())
    assert "Layout([x, y], Mesh(x=4, y=2, cpu))" in text
    for words in ("dim 0 ↓ dim 1 →", "x=0", "x=3", "y=1"):
        assert words in text
    assert "x+y=7" in str(Layout([("x", "y")], mesh).visualize())


def test_a_shape_gives_the_indices_of_each_part(mesh):
    text = str(Layout(["x", UNSHARDED], mesh).visualize((8, 6)))
    assert "shape (8, 6) in parts of (2, 6)" in text.replace("\n", " ")
    for words in ("0:6", "x=0 0:2", "x=3 6:8"):
        assert words in text
    assert "0:6" not in str(Layout(["x", UNSHARDED], mesh).visualize())


def test_shapes_that_do_not_fit_are_refused(mesh):
    with pytest.raises(LayoutError, match=r"length 6.* 4 equal"):
        Layout(["x"], mesh).visualize((6,))
    with pytest.raises(LayoutError, match="rank 1"):
        Layout(["x"], mesh).visualize((8, 8))
    with pytest.raises(LayoutError, match="only relayout knows"):
        Layout([MATCH], mesh).visualize()


def test_of_higher_ranks_the_cut_dimensions_are_drawn(cube):
    one = str(Layout([UNSHARDED, "b", UNSHARDED], cube).visualize((3, 4, 5)))
    assert cells(one) == [["cpu 0,1,4,5", "cpu 2,3,6,7"]]
    assert "dim 1 →" in one
    two = str(Layout(["c", UNSHARDED, "a", UNSHARDED], cube).visualize())
    assert cells(two) == [["cpu 0,2", "cpu 4,6"], ["cpu 1,3", "cpu 5,7"]]
    assert "dim 0 ↓ dim 2 →" in two


def test_a_third_cut_dimension_makes_several_grids(cube):
    picture = Layout(["a", UNSHARDED, "b", "c"], cube).visualize((4, 5, 6, 8))
    text = str(picture)
    assert cells(text) == [["cpu 0", "cpu 1"], ["cpu 2", "cpu 3"], ["cpu 4", "cpu 5"], ["cpu 6", "cpu 7"]]
    assert re.findall(r"dim 0: a=\d  \d:\d", text) == ["dim 0: a=0  0:2", "dim 0: a=1  2:4"]
    assert len(rectangles(picture.to_svg())) == 8


@pytest.mark.parametrize("width", [60, 120])
def test_the_drawing_fits_the_terminal(width):
    for specs, shape in ((["x"], (8000,)), ([UNSHARDED, "x"], (3, 80_000)), (["x", UNSHARDED], (80_000, 3))):
        lines = printed(Layout(specs, create_mesh()).visualize(shape), width).splitlines()
        assert max(map(len, lines)) <= width
        assert not any("…" in line and ":…" in line for line in lines)


def test_of_many_parts_the_middle_is_left_out(mesh):
    text = printed(Layout([UNSHARDED, "x"], create_mesh()).visualize((3, 80_000)), 60)
    (row,) = cells(text)
    assert row[0] == "cpu 0"
    assert row[-1] == "cpu 7"
    assert len(row) < 8
    assert "…" in text


def test_groups_of_devices_have_their_own_light_colours(mesh):
    svg = Layout(["x", "y"], mesh).visualize().to_svg()
    fills = [box.get("fill") for box in ET.fromstring(svg).iter(f"{SVG}rect") if box.get("x")]
    assert len(set(fills)) == 8
    for fill in fills:
        red, green, blue = (int(fill[i : i + 2], 16) / 255 for i in (1, 3, 5))
        assert 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.5
    assert "\x1b[38;2;26;26;26;48;2;153;221;255m" in printed(Layout(["x"], mesh).visualize(), 80, "truecolor")


def test_cells_of_the_image_neither_overlap_nor_leave_it(cube):
    svg = Layout(["a", "b", "c"], cube).visualize((8, 8, 8)).to_svg()
    root = ET.fromstring(svg)
    boxes = rectangles(svg)
    assert all(x + w <= float(root.get("width")) and y + h <= float(root.get("height")) for x, y, w, h in boxes)
    for i, (x, y, w, h) in enumerate(boxes):
        assert not any(x < x2 < x + w and y < y2 < y + h for x2, y2, _, _ in boxes[i + 1 :])
    texts = [(text.text, float(text.get("x")), float(text.get("y"))) for text in root.iter(f"{SVG}text")]
    assert len({(x, y) for _, x, y in texts}) == len(texts)
    labels = [text for text, x, y in texts if any(bx < x < bx + w and by < y < by + h for bx, by, w, h in boxes)]
    assert labels == [f"cpu {i}" for i in range(8)]


def test_a_notebook_gets_the_image_with_names_escaped():
    mesh = create_mesh([("x", 8)], "<b>&")
    html = Layout(["x"], mesh).visualize()._repr_html_()
    assert html.startswith("<div><svg")
    assert "<b>" not in html
    assert "&lt;b&gt;&amp;" in html


def test_a_mesh_dimension_of_size_one_is_drawn_as_a_cut():
    alone = create_mesh([("x", 1)], devices=[jax.devices()[3]])
    text = str(Layout(["x"], alone).visualize((5,)))
    assert cells(text) == [["cpu 3"]]
    assert "x=0" in text
