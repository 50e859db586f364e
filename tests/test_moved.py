"""Old import paths of public modules."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

import replicax as rx
from tests.each import each

OLD = [path.stem for path in (Path(rx.__file__).parent / "moved").glob("*.py") if path.stem != "__init__"]


def test_an_old_path_gives_the_module_and_says_where_it_is():
    def check(name):
        sys.modules.pop(f"replicax.{name}", None)
        with pytest.warns(DeprecationWarning, match=rf"^The module replicax\.{name} is replicax\.[\w.]+ now"):
            assert importlib.import_module(f"replicax.{name}") is getattr(rx, name)

    each(OLD, check)


def test_the_old_path_of_tensorflows_checkpoints():
    sys.modules.pop("replicax.checkpoint.tensorflow", None)
    message = (
        r"^The module replicax\.checkpoint\.tensorflow is replicax\.tensorflow\.checkpoints now.*rx\.checkpoint\.t"
    )
    with pytest.warns(DeprecationWarning, match=message):
        assert importlib.import_module("replicax.checkpoint.tensorflow") is rx.checkpoint.tensorflow


def test_modules_below_an_old_path_are_not_loaded_twice():
    sys.modules.pop("replicax.plots", None)
    with pytest.warns(DeprecationWarning, match=r"replicax\.plots is"):
        importlib.import_module("replicax.plots")
    assert importlib.import_module("replicax.plots.timeline") is importlib.import_module(
        "replicax.tools.plots.timeline"
    )
    assert importlib.import_module("replicax.tools.plots.timeline").Period is rx.plots.Period


def test_what_users_write_does_not_warn():
    from replicax import coordinator, health, notebook, plots, trackers

    assert (coordinator, health, notebook, plots, trackers) == tuple(
        getattr(rx, name) for name in ("coordinator", "health", "notebook", "plots", "trackers")
    )
