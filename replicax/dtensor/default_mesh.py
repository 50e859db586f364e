"""The default mesh: layouts that are made without a mesh are for it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import cast

import jax

import replicax.context as context
from replicax.compat.jax_tracing import constants_are_traced
from replicax.dtensor.mesh import Mesh, MeshLike
from replicax.runtime.devices import device_name as name_of


@contextlib.contextmanager
def default_mesh(mesh: MeshLike) -> Iterator[Mesh]:
    """Makes `mesh` the default one inside a `with` block, and restores the previous one at the end of the block.

    Layouts that are made without a mesh are for the default one. It is JAX's own mesh too (`jax.set_mesh`): new arrays
    without a layout (`jnp.ones`, `jnp.array`) are replicated over it, a bare `jax.sharding.PartitionSpec` names its
    dimensions, and JAX computes on its devices only, so use arrays of another mesh outside of the block. In a function
    that is being traced, only the first sentence holds.

    Raises:
        MeshError: `mesh` is not a mesh.

    Example:
        >>> with rx.dtensor.default_mesh(rx.dtensor.create_mesh([("x", 8)])) as mesh:
        ...     rx.dtensor.get_default_mesh() is mesh
        True
    """
    mesh = Mesh.of(mesh)
    with contextlib.ExitStack() as stack:
        if not constants_are_traced():  # JAX sets its own mesh outside of traced functions only.
            stack.enter_context(jax.set_mesh(mesh.jax_mesh))
        stack.enter_context(context.entered(default_mesh=mesh))
        yield mesh


run_on = default_mesh


def get_default_mesh() -> Mesh | None:
    """Returns the mesh of the enclosing `default_mesh`, None outside of every one.

    Example:
        >>> rx.dtensor.get_default_mesh()
    """
    return cast("Mesh | None", context.current().default_mesh)


def device_name() -> str:
    """Returns the name of the device, such as `"cpu:0"`, on which JAX makes arrays that have no mesh and no layout.

    Example:
        >>> rx.dtensor.device_name()
        'cpu:0'
    """
    with jax.ensure_compile_time_eval():  # in a traced function too
        return name_of(jax.device_put(0).devices().pop())
