"""Writing exported functions, and what cannot be exported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax import dtensor
from replicax.dtensor import UNSHARDED, DVariable, Layout
from replicax.errors import ExportError

X = np.ones((4, 2), np.float32)


class Pair(NamedTuple):
    a: object
    b: object


@pytest.fixture(scope="module")
def mesh() -> dtensor.Mesh:
    return dtensor.create_mesh([("batch", 4), ("model", 2)])


def manifest(path: Path) -> dict:
    return json.loads((path / "manifest.json").read_text())


def test_layouts_are_written_down(tmp_path: Path, mesh):
    w = DVariable(np.ones((2, 8), np.float32), layout=Layout([UNSHARDED, ("batch", "model")], mesh), name="w")
    x = dtensor.relayout(X, Layout(["batch", UNSHARDED], mesh))
    path = rx.export(lambda x: x @ w.value, tmp_path / "f", x)
    found = manifest(path)
    assert found["mesh"] == [["batch", 4], ["model", 2]]
    assert found["variables"][0]["layout"] == ["unsharded", ["batch", "model"]]
    assert found["inputs"][0]["layout"] == ["batch", "unsharded"]
    assert sorted(p.name for p in path.iterdir()) == [
        "manifest.json",
        "portable.stablehlo",
        "sharded.stablehlo",
        "variables",
    ]


def test_without_a_mesh_there_is_one_program(tmp_path: Path):
    path = rx.export(lambda x: x + 1, tmp_path / "f", X)
    assert sorted(p.name for p in path.iterdir()) == ["manifest.json", "portable.stablehlo"]


def test_exporting_runs_nothing(tmp_path: Path):
    count = rx.Variable(0)
    rx.export(rx.function(lambda x: count.assign_add(1) + x), tmp_path / "f", jax.ShapeDtypeStruct((), jnp.int32))
    assert count.numpy() == 0


def test_an_existing_directory_is_left_alone(tmp_path: Path):
    (tmp_path / "f").mkdir()
    with pytest.raises(ExportError, match="exists already"):
        rx.export(lambda x: x, tmp_path / "f", X)
    assert not list((tmp_path / "f").iterdir())


@pytest.mark.parametrize(
    ("fn", "argument", "message"),
    [
        (lambda x: x.a, Pair(X, X), "needs none of your code"),
        (lambda x: Pair(x, x), X, "needs none of your code"),
        (lambda x: jax.random.split(x), jax.random.key(0), "random key"),
        (lambda x: jax.pure_callback(lambda x: x, x, x), X, "cannot export"),
    ],
    ids=["argument", "result", "key", "callback"],
)
def test_what_cannot_be_exported_leaves_nothing_behind(tmp_path: Path, fn, argument, message: str):
    with pytest.raises(ExportError, match=message):
        rx.export(fn, tmp_path / "f", argument)
    assert not list(tmp_path.iterdir())


def test_two_meshes_are_refused(tmp_path: Path, mesh):
    other = dtensor.create_mesh([("x", 8)])
    a, b = (DVariable(np.ones(8, np.float32), layout=Layout.replicated(m, 1)) for m in (mesh, other))
    with pytest.raises(ExportError, match="several meshes"):
        rx.export(lambda: a + b, tmp_path / "f")


def test_a_variable_that_is_only_assigned_is_refused(tmp_path: Path):
    last = rx.Variable(np.zeros((4, 2), np.float32), name="last")
    with pytest.raises(ExportError, match="last"):
        rx.export(lambda x: last.assign(x), tmp_path / "f", X)


def test_variables_of_one_name_keep_their_values_whatever_the_others_are_called(tmp_path: Path):
    variables = [rx.Variable(float(i), name=name) for i, name in enumerate(["w", "w", "w_2", "w"])]
    rx.export(lambda x: sum(v.value * x**i for i, v in enumerate(variables)), tmp_path / "f", jnp.float32(0))
    assert float(rx.load_export(tmp_path / "f")(jnp.float32(2.0))) == 0 + 1 * 2 + 2 * 4 + 3 * 8
