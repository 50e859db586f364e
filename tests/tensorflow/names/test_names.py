"""The rows of TensorFlow's names: each public name has one, and each is true."""

from __future__ import annotations

import gc
import pickle

import pytest

import replicax as rx
from replicax.contracts.called_as import tensorflow_keywords
from replicax.errors import ArgumentError
from replicax.tensorflow.names import NAMES
from tests.each import each
from tests.tensorflow.names import (
    test_calls_checkpoints as _checkpoints,
    test_calls_cluster as _cluster,
    test_calls_dtensor as _dtensor,
    test_calls_estimator as _estimator,
    test_calls_strategies as _strategies,
    test_calls_variables as _variables,
)
from tests.tensorflow.names.calls import LISTED, ROOT, TRIED, load_program

CALLS = (
    _checkpoints,
    _cluster,
    _dtensor,
    _estimator,
    _strategies,
    _variables,
)  # They say what they try when they are imported.

check_table = load_program("check_table")
NAMES_THERE = list(LISTED.values())
MADE_BY_REPLICAX = {
    "tf.distribute.ReplicaContext",
    "tf.distribute.Strategy",
    "tf.distribute.cluster_resolver.ClusterResolver",
    "tf.distribute.experimental.coordinator.PerWorkerValues",
}
REFUSED = [
    (tf_name, keyword)
    for tf_name, row in NAMES.items()
    for keyword, meaning in row.keywords.items()
    if not meaning.here and meaning.accepted is not None
]


def test_a_public_name_of_tensorflow_resolves_with_its_keywords_or_gives_advice():
    def check(tf_name):
        assert list(check_table.faults(LISTED[tf_name])) == []

    each(LISTED, check)


def test_no_name_is_without_a_row(capsys):
    code = check_table.main()
    shown = capsys.readouterr().out
    assert shown.endswith("RESULT names_without_row 0\n"), shown
    assert code == 0, shown
    assert len(LISTED) > 400


def test_the_guide_of_the_site_shows_all_rows():
    hook = load_program("tables_of_names")
    source = (ROOT / "docs" / "guides" / "from-tf-distribute.md").read_text()
    page = hook.on_page_markdown(source, page=None)
    shown = page.replace(source.partition(hook.PLACE)[0], "")
    assert hook.PLACE not in shown
    for tf_name, row in NAMES.items():
        assert f"`{tf_name}`" in shown or f"`{tf_name.rpartition('.')[2]}`" in shown, tf_name
        assert row.note in shown, tf_name
    assert hook.on_page_markdown("# Another page\n", page=None) == "# Another page\n"


def test_every_name_that_is_called_is_tried_with_all_its_keywords():
    """The fixture `call` sees to the keywords."""
    called = {name.name for name in NAMES_THERE if check_table.is_called(name, NAMES[name.name])}
    assert called - TRIED == MADE_BY_REPLICAX
    assert set(LISTED) >= TRIED


def test_a_row_is_whole():
    def check(tf_name):
        row = NAMES[tf_name]
        assert tf_name.startswith("tf")
        assert not row.note or row.note.endswith((".", "`"))
        assert bool(row.here) == (row.kind != "absent")
        assert row.note or row.kind in ("same", "renamed")
        for keyword in row.keywords.values():
            assert keyword.note.endswith(".")

    each(NAMES, check)


def test_a_keyword_that_is_not_here_is_refused_with_the_advice_of_its_row():
    each(REFUSED, is_refused)


def is_refused(name_and_keyword):
    tf_name, keyword = name_and_keyword
    row = NAMES[tf_name]
    called = check_table.function_of(row)
    if tf_name == "tf.distribute.Strategy" or keyword not in tensorflow_keywords(called):
        # The name itself is answered with advice; an abstract class is not called.
        assert tf_name == "tf.distribute.Strategy" or check_table.asked(check_table.asked_as(tf_name)) is None
        return
    with pytest.raises(ArgumentError) as caught:
        called(**{keyword: object()})
    assert f"`{keyword}`" in str(caught.value)
    assert tensorflow_keywords(called)[keyword].note in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_a_wrong_row_is_found(monkeypatch):
    """So that a check that cannot fail would be noticed."""
    run = next(name for name in NAMES_THERE if name.name == "tf.distribute.Strategy.run")
    extended = next(name for name in NAMES_THERE if name.name == "tf.distribute.Strategy.extended")

    def row_of(name, row):
        monkeypatch.setattr(check_table, "NAMES", {**NAMES, name.name: row})
        return list(check_table.faults(name))

    row = NAMES[run.name]
    assert row_of(run, row._replace(kind="absent", here="")) == [
        "its row says that it is not here, and rx.Strategy.run is"
    ]
    assert row_of(run, row._replace(keywords={})) == [
        "rx.Strategy.run has no keyword options, and the row says nothing of it"
    ]
    with pytest.raises(AttributeError, match="nothing_like_it"):
        row_of(extended, row._replace(here="Strategy.nothing_like_it"))
    without = type("Without", (rx.OneDeviceStrategy,), {"__module__": "replicax.here", "run": lambda self, fn, args: 0})
    assert set(row_of(run, row)) == {
        f"replicax.here.Without overrides rx.Strategy.run without the keyword {keyword}"
        for keyword in ("kwargs", "options")
    }
    del without
    gc.collect()  # Or it would stay among the subclasses.
    assert row_of(run, row) == []
    monkeypatch.setattr(check_table, "NAMES", {})
    assert list(check_table.faults(run)) == ["it has no row"]
