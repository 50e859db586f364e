"""The communication of real programs, and its report."""

from __future__ import annotations

import dataclasses
import functools
import io

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec
from rich.console import Console

import replicax as rx
from replicax.dtensor import CommunicationReport, communication
from replicax.dtensor.communication import Collective

# Real programs.


@pytest.fixture(scope="module")
def mesh() -> rx.dtensor.Mesh:
    return rx.dtensor.create_mesh([("x", 8)])


def cut(array: np.ndarray, mesh: rx.dtensor.Mesh) -> jax.Array:
    return rx.dtensor.relayout(array, rx.dtensor.Layout.batch_sharded(mesh, "x", array.ndim))


def test_every_kind_in_one_program(mesh: rx.dtensor.Mesh):
    def kinds(x):
        ring = [(i, (i + 1) % 8) for i in range(8)]
        return (
            jax.lax.psum(x, "x"),
            jax.lax.psum_scatter(x, "x", scatter_dimension=1, tiled=True),
            jax.lax.all_gather(x, "x"),
            jax.lax.all_to_all(x, "x", split_axis=1, concat_axis=0, tiled=True),
            jax.lax.ppermute(x, "x", ring),
        )

    cut_spec, whole = PartitionSpec("x"), PartitionSpec()
    specs = (whole, cut_spec, cut_spec, cut_spec, cut_spec)
    fn = jax.jit(jax.shard_map(kinds, mesh=mesh.jax_mesh, in_specs=cut_spec, out_specs=specs))
    report = communication(fn, cut(np.ones((16, 8), "float32"), mesh))
    found = ["all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute"]
    assert report.counts == dict.fromkeys(found, 1)
    assert report.payload_bytes == dict.fromkeys(found, 64)
    assert report.sent_bytes == dict(zip(found, [112, 448, 56, 56, 64], strict=True))
    assert report.in_loops == dict.fromkeys(found, 0)
    assert report.total_sent_bytes == 112 + 448 + 56 + 56 + 64
    assert report.num_devices == 8


def test_loops_in_a_program(mesh: rx.dtensor.Mesh):
    def grow(x):
        return jax.lax.while_loop(lambda x: x.sum() < 100, lambda x: 2 * x, x)

    report = communication(grow, cut(np.ones((16, 8), "float32"), mesh))
    assert report.counts == report.in_loops == {"all-reduce": 1}


def test_an_rx_function_is_compiled_and_not_run(mesh: rx.dtensor.Mesh):
    total = rx.dtensor.DVariable(0.0, layout=rx.dtensor.Layout([], mesh))

    @rx.function
    def add(x, *, scale):
        return total.assign_add(scale * jnp.sum(x))

    rows = cut(np.ones(16, "float32"), mesh)
    assert communication(add, rows, scale=2.0).counts == {"all-reduce": 1}
    assert float(total.value) == 0.0
    add(rows, scale=2.0)
    assert float(total.value) == 32.0


def test_a_method_and_any_callable(mesh: rx.dtensor.Mesh):
    class Model:
        @rx.function
        def call(self, x):
            return jnp.sum(x)

    rows = cut(np.ones(16, "float32"), mesh)
    one = {"all-reduce": 1}
    assert communication(Model().call, rows).counts == one
    assert communication(functools.partial(jnp.sum, axis=0), rows).counts == one
    assert communication(jax.jit(jnp.sum), rows).counts == one


def test_nothing_to_send(mesh: rx.dtensor.Mesh):
    report = communication(lambda x: 2 * x, cut(np.ones(16, "float32"), mesh))
    assert report == CommunicationReport((), 8)
    assert report.counts == report.payload_bytes == report.sent_bytes == {}
    assert report.total_sent_bytes == 0
    assert str(report) == "no collectives on 8 devices"
    assert str(communication(jnp.sum, jnp.ones(3))) == "no collectives on 1 device"


def test_only_functions():
    with pytest.raises(rx.errors.ArgumentError, match="communication takes a function, got int: 3"):
        communication(3)


# The report.

REPORT = CommunicationReport(
    (Collective("all-to-all", 8000, 8), Collective("all-reduce", 4, 8), Collective("all-reduce", 800, 8, in_loop=True)),
    8,
)


def test_report_as_text():
    assert str(dataclasses.replace(REPORT, collectives=REPORT.collectives[:2])).splitlines() == [
        "collective  count  payload bytes  sent bytes",
        "all-reduce      1              4           7",
        "all-to-all      1          8,000       7,000",
    ]


def test_report_as_text_with_loops():
    assert str(REPORT).splitlines() == [
        "collective  count  in loops  payload bytes  sent bytes",
        "all-reduce      2         1            804       1,407",
        "all-to-all      1         0          8,000       7,000",
    ]


def test_report_as_a_table():
    console = Console(file=io.StringIO(), width=100)
    console.print(REPORT)
    written = console.file.getvalue()
    assert "one of 8 devices" in written
    assert ["all-reduce", "2", "1", "804", "1,407"] in [line.replace("│", " ").split() for line in written.splitlines()]


def test_report_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        REPORT.num_devices = 1
