"""What DTensor costs over hand-written JAX: a training step whose batch comes from the host each time.

    python benchmarks/dtensor.py [--devices 8] [--rows 128 512] [--rounds 30] [--steps 5]

The step is a 784-700-500-10 network with Adam. By hand, a batch is placed with `jax.device_put` and a `NamedSharding`
and the step is partitioned by XLA; with DTensor, `pack` makes it from its parts or `relayout` cuts it, and the step
reads and assigns `DVariable`s. Both sides' optimizer is optax's. All variants run in turn; figures are medians.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import handwritten as hand
import jax
import numpy as np
import optax
from jax.sharding import NamedSharding, PartitionSpec
from timing import interleaved_medians, print_table

import replicax as rx
from replicax.dtensor import UNSHARDED, DVariable, Layout, Mesh, create_mesh, pack, relayout

BY_HAND, PACKED, RELAID = "hand-written GSPMD", "DTensor, pack", "DTensor, relayout"

Place = Callable[[np.ndarray, Layout], jax.Array]


class HandWrittenLoop(hand.HandWritten):
    """The yardstick, which places a batch of the host at each step."""

    def __init__(self, mesh: Mesh, rows: int):
        super().__init__(hand.make_gspmd_step(mesh.jax_mesh, rows), mesh.jax_mesh, hand.SIZES, hand.make_batch(rows))
        self.on_host = hand.make_batch(rows)
        self.sharding = NamedSharding(mesh.jax_mesh, PartitionSpec("replica"))

    def __call__(self) -> None:
        """Makes one step."""
        self.batch = jax.device_put(self.on_host, self.sharding)
        super().__call__()


class DTensorLoop:
    """The same step over `DVariable`s.

    Args:
        mesh: Devices, one dimension `"replica"`.
        rows: Global batch size.
        place: Makes a DTensor of an array of the host.
    """

    def __init__(self, mesh: Mesh, rows: int, place: Place):
        self.mesh, self.place, self.on_host = mesh, place, hand.make_batch(rows)
        params = self._variables(hand.init_params())
        state = self._variables(hand.adam().init(hand.init_params()))

        @rx.function
        def step(x: jax.Array, y: jax.Array) -> jax.Array:
            loss, grads = rx.value_and_grad(lambda: hand.loss_sum(_values(params), x, y) / rows, params)()
            updates, new_state = hand.adam().update(grads, _values(state))
            _assign(state, new_state)
            _assign(params, optax.apply_updates(_values(params), updates))
            return loss

        self.step, self.variables = step, jax.tree_util.tree_leaves((params, state))
        self.loss: Any = None

    def _variables(self, arrays: Any) -> Any:
        """Returns a nest of arrays as variables that every device holds."""
        return jax.tree_util.tree_map(
            lambda array: DVariable(array, layout=Layout.replicated(self.mesh, np.ndim(array))), arrays
        )

    def __call__(self) -> None:
        """Makes one step."""
        x, y = self.on_host
        x = self.place(x, Layout(["replica", UNSHARDED], self.mesh))
        self.loss = self.step(x, self.place(y, Layout(["replica"], self.mesh)))

    def wait(self) -> None:
        """Waits for the last step."""
        jax.block_until_ready(([variable.value for variable in self.variables], self.loss))


def _values(variables: Any) -> Any:
    return jax.tree_util.tree_map(lambda variable: variable.value, variables)


def _assign(variables: Any, values: Any) -> None:
    jax.tree_util.tree_map(lambda variable, value: variable.assign(value), variables, values)


def pack_parts(x: np.ndarray, layout: Layout) -> jax.Array:
    """Sends each device its part, as examples/dtensor_mlp.py does."""
    lengths = layout.local_shape(x.shape)

    def component(location: dict[str, int]) -> np.ndarray:
        starts = [location.get(str(dim), 0) * n for dim, n in zip(layout.sharding_specs, lengths, strict=True)]
        return x[tuple(slice(start, start + n) for start, n in zip(starts, lengths, strict=True))]

    return pack([component(location) for location in layout.mesh.local_device_locations()], layout)


def step_seconds(mesh: Mesh, rows: int, rounds: int, steps: int) -> dict[str, float]:
    """Measures a step of each variant, after a check that they compute the same."""
    variants: dict[str, Any] = {
        BY_HAND: HandWrittenLoop(mesh, rows),
        PACKED: DTensorLoop(mesh, rows, pack_parts),
        RELAID: DTensorLoop(mesh, rows, relayout),
    }
    for variant in variants.values():
        variant()
        variant()
    np.testing.assert_allclose([float(v.loss) for v in variants.values()], float(variants[BY_HAND].loss), rtol=1e-5)
    return interleaved_medians(variants, {name: v.wait for name, v in variants.items()}, rounds, steps)


def placing_seconds(mesh: Mesh, rows: int, rounds: int) -> dict[str, float]:
    """Measures how long a batch takes to its devices."""
    batch, sharding = hand.make_batch(rows), NamedSharding(mesh.jax_mesh, PartitionSpec("replica"))

    def placing(place: Place) -> Callable[[], object]:
        x, y = batch
        return lambda: jax.block_until_ready(
            (place(x, Layout(["replica", UNSHARDED], mesh)), place(y, Layout(["replica"], mesh)))
        )

    variants = {
        BY_HAND: lambda: jax.block_until_ready(jax.device_put(batch, sharding)),
        PACKED: placing(pack_parts),
        RELAID: placing(relayout),
    }
    return interleaved_medians(variants, dict.fromkeys(variants, lambda: None), rounds, 50)


def main() -> None:
    """Prints a table for each batch size, and the RESULT lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=8, help="virtual CPU devices, where there is no GPU")
    parser.add_argument("--rows", type=int, nargs="+", default=[128, 512], help="batch sizes; the first one counts")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--steps", type=int, default=5, help="steps of a variant in each round")
    options = parser.parse_args()
    rx.config.set_virtual_devices(options.devices)
    mesh = create_mesh([("replica", -1)])

    ratios = {}
    for rows in options.rows:
        medians = step_seconds(mesh, rows, options.rounds, options.steps)
        placing = placing_seconds(mesh, rows, options.rounds)
        ratios[rows] = {name: seconds / medians[BY_HAND] for name, seconds in medians.items()}
        table = [
            (name, f"{medians[name] * 1e3:.2f}", f"{ratios[rows][name]:.3f}", f"{placing[name] * 1e3:.3f}")
            for name in medians
        ]
        print_table(f"one step of {rows} rows on {mesh!r}", ("variant", "ms", "ratio", "ms to place"), table)
    for rows, by_name in ratios.items():
        print(f"RESULT dtensor_relayout_vs_gspmd_{rows} {by_name[RELAID]:.3f}")
    for rows, by_name in list(ratios.items())[1:]:
        print(f"RESULT dtensor_vs_gspmd_{rows} {by_name[PACKED]:.3f}")
    print(f"RESULT dtensor_vs_gspmd {ratios[options.rows[0]][PACKED]:.3f}")


if __name__ == "__main__":
    main()
