"""The scripts of the corpus: their licences, what TensorFlow computed, and a few of them converted and run."""

import json
import re

import pytest

from replicax.tensorflow.codemod.conversion import convert
from tests.migrate.corpus_scripts import FOLDER, HELPERS, scripts
from tests.migrate.report import PAGE, edits_only, outcome, page_with

SCRIPTS = {each.name: each for each in scripts()}
FAST = ("guide_distributed_fit", "migrate_mirrored_keras")


def test_each_script_says_where_it_is_from_and_under_which_licence():
    manifest = json.loads((FOLDER / "manifest.json").read_text())
    assert {each.stem for each in FOLDER.glob("*.py")} == {each["name"] for each in manifest} | {
        name.removesuffix(".py") for name in HELPERS
    }
    assert len(manifest) >= 30
    for each in manifest:
        assert each["licence"] in ("Apache-2.0", "MIT")
        head = (FOLDER / f"{each['name']}.py").read_text()[:600]
        if each["repository"] == "replicax":
            assert "# Written for this corpus: " in head
        else:
            assert len(each["commit"]) == 40
            assert each["url"] in head
        assert f"SPDX-License-Identifier: {each['licence']}" in head
        assert each["author"] in head
        assert each["changed"] is not None


@pytest.mark.nightly
def test_the_table_of_the_corpus_is_that_of_the_conversion():
    text = PAGE.read_text()
    assert text == page_with(text, [edits_only(each) for each in SCRIPTS.values()]), (
        "the table is older than the conversion: python tests/migrate/report.py --write"
    )


def test_the_guide_has_the_counts_of_the_table():
    total, converted = re.search(r"^(\d+) scripts, (\d+) of them converted", PAGE.read_text(), re.MULTILINE).groups()
    guide = (FOLDER.parents[2] / "docs" / "guides" / "leaving-tf-distribute.md").read_text()
    assert f"{converted} of {total} scripts" in guide


@pytest.mark.nightly
def test_converting_a_converted_script_changes_nothing():
    for name in ("docs_custom_training", "guide_distributed_fit", "keras_io_distributed_training"):
        once = convert(SCRIPTS[name].path.read_text()).after
        assert convert(once).after == once


@pytest.mark.daily(1)
@pytest.mark.slow
@pytest.mark.parametrize("name", FAST)
def test_a_converted_script_computes_what_it_computed(name):
    found = outcome(SCRIPTS[name], replicas=(1,))
    assert found.is_converted, found.summary()
    assert found.difference <= 1e-4


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.nightly
def test_no_script_is_changed_silently(name):
    found = outcome(SCRIPTS[name])
    assert not found.is_changed_silently, found.summary()
    if found.difference is not None:
        assert found.difference <= 1e-4
