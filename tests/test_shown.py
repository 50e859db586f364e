"""Texts that a notebook shows as they are printed, or as tables."""

from __future__ import annotations

import pickle

import numpy as np

import replicax as rx
from replicax.dtensor import MATCH, Layout
from replicax.shown import Shown, html_table


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
