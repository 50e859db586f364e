"""The default mesh: the one that layouts made without a mesh are for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import jax

import replicax.context as context
from replicax.dtensor.arrays import constants_are_traced
from replicax.dtensor.mesh import Mesh
from replicax.runtime.devices import device_name as name_of


@contextlib.contextmanager
def default_mesh(mesh: Any) -> Iterator[Mesh]:
    """Makes `mesh` the default one inside a `with` block; however the block ends, the previous one comes back.

    Layouts made without a mesh are for it. New arrays that no layout places (`jnp.ones`, `jnp.array`) are made on it,
    replicated, and a bare `jax.sharding.PartitionSpec` names its dimensions: it is JAX's own mesh too
    (`jax.set_mesh`), so that inside the block it computes on these devices only: use arrays of another mesh outside.
    In a function that is being traced only the first of these holds.

    Raises:
        MeshError: `mesh` is not a mesh.
    """
    mesh = Mesh.of(mesh)
    with contextlib.ExitStack() as stack:
        if not constants_are_traced():  # JAX sets its own mesh outside of traced functions only.
            stack.enter_context(jax.set_mesh(mesh.jax_mesh))
        stack.enter_context(context.entered(default_mesh=mesh))
        yield mesh


run_on = default_mesh


def get_default_mesh() -> Mesh | None:
    """Returns the mesh of the enclosing `default_mesh`, None outside of every one."""
    return context.current().default_mesh


def device_name() -> str:
    """Returns the name of the device on which arrays are made that no mesh or layout places, such as `"cpu:0"`."""
    with jax.ensure_compile_time_eval():  # in a traced function too
        return name_of(jax.device_put(0).devices().pop())
