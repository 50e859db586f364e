"""Texts that a notebook shows as they are printed, or as tables."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from html import unescape

import numpy as np
import pytest

import replicax as rx
from replicax.contracts.shown import Shown, html_facts, html_table
from replicax.dtensor import MATCH, Layout


def test_a_text_is_a_text():
    shown = Shown("a < b\nc")
    assert shown == "a < b\nc" == str(shown)
    assert shown._repr_html_() == "<pre>a &lt; b\nc</pre>"
    assert Shown("a", "<b>a</b>")._repr_html_() == "<b>a</b>"
    again = pickle.loads(pickle.dumps(Shown("a", "<b>a</b>")))
    assert (again, again._repr_html_()) == ("a", "<b>a</b>")


def test_a_table_escapes_and_aligns():
    html = html_table(["<name>", "bytes"], [["a&b", 12345]], caption="of <one>")
    assert "<caption>of &lt;one&gt;</caption>" in html
    assert "<th>&lt;name&gt;</th><th>bytes</th>" in html
    assert '<td style="text-align: left">a&amp;b</td><td style="text-align: right">12,345</td>' in html


def test_what_reports_show_in_a_notebook():
    assert rx.health.report()._repr_html_().startswith("<pre>  worker:0")
    mesh = rx.dtensor.create_mesh([("x", 8)])
    layout = Layout(["x"], mesh)
    assert layout._repr_html_().count("Layout(") == 1
    assert "<svg" in layout._repr_html_()
    assert Layout([MATCH], mesh)._repr_html_() == "<pre>Layout([match], Mesh(x=8, cpu))</pre>"
    report = rx.dtensor.communication(lambda x: x.sum(), rx.dtensor.relayout(np.ones(8, "float32"), layout))
    assert "<caption>one of 8 devices</caption>" in report._repr_html_()
    assert "all-reduce</td>" in report._repr_html_()


def test_facts_are_escaped_but_for_what_is_shown_already():
    html = html_facts("<title>", {"a<b": "c&d", "number": 1234, "drawn": Shown("x", "<svg/>")})
    assert "<caption>&lt;title&gt;</caption>" in html
    assert '<th style="text-align: left">a&lt;b</th><td style="text-align: left">c&amp;d</td>' in html
    assert ">1234</td>" in html
    assert "<svg/></td>" in html


def cells(shown: object) -> list[str]:
    """Returns the words in the cells of a table, row by row."""
    return [unescape(cell) for cell in re.findall(r"<t[hd](?: [^>]*)?>(.*?)</t[hd]>", shown._repr_html_())]


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: rx.MirroredStrategy(["cpu:0", "cpu:1"]), {"replicas in sync": "2", "devices": "cpu:0, cpu:1"}),
        (rx.MirroredStrategy, {"sharded": "large optimizer state (ZeRO-1)"}),
        (lambda: rx.MirroredStrategy(shard_update=False), {"sharded": "nothing"}),
        (lambda: rx.FullyShardedStrategy(min_size=64), {"sharded": "variables of at least 64 elements"}),
        (lambda: rx.OneDeviceStrategy("cpu:3"), {"replicas in sync": "1", "devices": "cpu:3"}),
        (lambda: rx.LayoutStrategy(mesh_shape=(2, 4)), {"replicas in sync": "2", "mesh": "batch=2, model=4"}),
        (lambda: rx.CentralStorageStrategy(["cpu:1", "cpu:2"]), {"devices": "cpu:1, cpu:2"}),
        (rx.get_strategy, {"replicas in sync": "1", "devices": "whatever JAX uses"}),
    ],
)
def test_strategies_show_their_facts(make: Callable[[], rx.Strategy], expected: dict[str, str]):
    words = cells(make())
    assert expected.items() <= dict(zip(words[::2], words[1::2], strict=True)).items()


def test_a_per_replica_value_shows_each_component_and_where_it_is(mirrored, per_replica):
    rows = per_replica(mirrored(2), [1.0, 2.0], [3.0, 4.0])
    assert cells(rows)[5:] == ["0", "cpu:0", "[2]", "float32", "[1. 2.]", "1", "cpu:1", "[2]", "float32", "[3. 4.]"]
    assert str(rows).startswith(repr(rows))
    assert "strategy.reduce('sum', value)" in str(rows)
    uneven = per_replica(mirrored(2), [1.0], [2.0, 3.0])
    assert cells(uneven)[7::5] == ["[1]", "[2]"]
    mixed = per_replica(mirrored(2), "<a>", "b")
    assert cells(mixed)[5:] == ["0", "", "", "str", "'<a>'", "1", "", "", "str", "'b'"]
    shown = []
    mirrored(2).run(lambda value: shown.append(rx.PerReplica(value[None])._repr_html_()), args=(rows,))
    assert shown[0].startswith("<pre>PerReplica(1 x float32[2])")


def test_variables_meshes_and_clusters_show_their_facts(mirrored):
    with mirrored(2).scope():
        plain = rx.Variable(np.arange(3, dtype="float32"), name="<w>")
        total = rx.Variable(1.0, name="total", synchronization="on_read", aggregation="sum")
    assert cells(plain) == ["shape", "[3]", "dtype", "float32", "replicas", "2", "value", "[0., 1., 2.]"]
    assert "Variable &lt;w&gt;" in plain._repr_html_()
    assert cells(total)[6:] == ["each replica has its own; together", "sum", "components", "[1., 1.]"]

    mesh = rx.dtensor.create_mesh([("x", 2), ("y", 4)])
    assert cells(mesh)[:5] == ["x", "y=0", "y=1", "y=2", "y=3"]
    assert cells(mesh)[5:] == ["0", *(f"cpu:{i}" for i in range(4)), "1", *(f"cpu:{i}" for i in range(4, 8))]
    variable = rx.dtensor.DVariable(np.ones((2, 4), "float32"), layout=Layout(["x", "y"], mesh), name="kernel")
    assert "<svg" in variable._repr_html_()
    spec = rx.cluster_resolver.ClusterSpec({"worker": ["10.0.0.1:1", "10.0.0.2:1"]})
    assert cells(spec)[3:] == ["worker", "0", "10.0.0.1:1", "worker", "1", "10.0.0.2:1"]
