"""Saving tensors and variables over a mesh: its owner writes each shard, and any layout can read it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from replicax.checkpoint import Checkpoint as _Checkpoint, entries, read_arrays, write_arrays
from replicax.checkpoint.places import Directory, Place
from replicax.checks import explained
from replicax.contracts.called_as import called_as
from replicax.contracts.variable_access import is_saved_as_bfloat16
from replicax.dtensor.arrays import is_traced, layout_of
from replicax.dtensor.layout import Layout
from replicax.dtensor.mesh import Mesh, MeshLike
from replicax.dtensor.variable import DVariable
from replicax.errors import CheckpointError, LayoutError, ProgramError, TensorError


class Checkpoint(_Checkpoint):
    """The state of some objects, such as `DVariable`s over a mesh, to be written to disk and restored.

    It stores global tensors, which can be restored into variables of other layouts, on a mesh of another shape or size.
    `rx.Checkpoint` is the same without the check of the mesh.

    Args:
        mesh: The mesh that the `DVariable`s live over.
        root: An object whose attributes are stored under their own names.
        **objects: Objects by name: variables, lists and dicts of them, plain objects with variables among their
            attributes, Keras models, optimizers and metrics, and whatever else `rx.Checkpoint` takes.

    Raises:
        CheckpointError: There is nothing to save in an object, or a keyword is also an attribute of `root`.
        LayoutError: A `DVariable` lives over other devices than the mesh.

    Example:
        >>> import tempfile
        >>> from replicax.dtensor import Checkpoint, create_mesh
        >>> mesh = create_mesh([("x", 8)])
        >>> w = DVariable([1.0, 2.0], layout=Layout.replicated(mesh, 1))
        >>> directory = tempfile.mkdtemp() + "/first"
        >>> path = Checkpoint(mesh, w=w).write(directory)
        >>> w.assign([0.0, 0.0]), Checkpoint(mesh, w=w).restore(directory), w.numpy()
        (Array([0., 0.], dtype=float32), {}, array([1., 2.], dtype=float32))
    """

    def __init__(self, mesh: MeshLike, root: object = None, **objects: object):
        self.mesh = Mesh.of(mesh)
        super().__init__(root, **objects)

    def current_parts(self, allow_unbuilt: bool = True) -> Any:
        parts, devices = super().current_parts(allow_unbuilt), self.mesh.global_devices()
        for name, variable in parts.variables.items():
            if isinstance(variable, DVariable) and variable.layout.mesh.global_devices() != devices:
                raise LayoutError(
                    f"{name!r} lives over {variable.layout.mesh!r}, but the checkpoint is for {self.mesh!r}."
                )
        return parts


@explained
@called_as("tf.experimental.dtensor.sharded_save")
def sharded_save(
    mesh: MeshLike, directory: Directory, tensor_names: Sequence[str], tensors: Sequence[jax.Array | DVariable]
) -> Place:
    """Writes tensors under names and returns the path. Each process writes the shards that its devices hold.

    Args:
        mesh: The mesh that the tensors live over.
        directory: A new directory.
        tensor_names: A name for each tensor.
        tensors: DTensors or `DVariable`s.

    Raises:
        TensorError: The numbers of names and tensors differ, or a tensor does not live on a mesh.
        CheckpointError: A name comes twice, the directory exists, or it cannot be written.
        LayoutError: A tensor lives over other devices than the mesh.
        ProgramError: A tensor is traced.

    Example:
        >>> import numpy as np
        >>> import tempfile
        >>> mesh = rx.dtensor.create_mesh([("x", 8)])
        >>> x = rx.dtensor.relayout(np.zeros(8, np.float32), rx.dtensor.Layout(["x"], mesh))
        >>> rx.dtensor.sharded_save(mesh, tempfile.mkdtemp() + "/x", ["x"], [x]).name
        'x'
    """
    if len(tensor_names) != len(tensors):
        raise TensorError(f"There are {len(tensor_names)} names for {len(tensors)} tensors.")
    repeated = sorted({name for name in tensor_names if list(tensor_names).count(name) > 1})
    if repeated:
        raise CheckpointError(f"The names of tensors must differ, but {repeated} came more than once.")
    return name_based_save(mesh, directory, dict(zip(tensor_names, tensors, strict=True)))


@called_as("tf.experimental.dtensor.name_based_save")
def name_based_save(
    mesh: MeshLike, directory: Directory, name_tensor_dict: Mapping[str, jax.Array | DVariable]
) -> Place:
    """Writes tensors by name, like `sharded_save`.

    Example:
        >>> import numpy as np
        >>> import tempfile
        >>> mesh = rx.dtensor.create_mesh([("x", 8)])
        >>> x = rx.dtensor.relayout(np.arange(8.0), rx.dtensor.Layout(["x"], mesh))
        >>> folder = rx.dtensor.name_based_save(mesh, tempfile.mkdtemp() + "/x", {"x": x})
        >>> rx.dtensor.name_based_restore(mesh, folder, {"x": x})["x"].tolist()
        [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    """
    mesh = Mesh.of(mesh)
    arrays = {}
    for name, tensor in name_tensor_dict.items():
        value = tensor.value if isinstance(tensor, DVariable) else tensor
        _layout_on(mesh, name, value)
        arrays[name] = value.astype("bfloat16") if is_saved_as_bfloat16(tensor) else value
    return write_arrays(directory, arrays)


@called_as("tf.experimental.dtensor.name_based_restore")
def name_based_restore(
    mesh: MeshLike, directory: Directory, name_tensor_dict: Mapping[str, jax.Array | jax.ShapeDtypeStruct | DVariable]
) -> OrderedDict[str, jax.Array]:
    """Returns tensors that were saved by name.

    Args:
        mesh: The mesh that the tensors are to live over.
        directory: Where they were saved.
        name_tensor_dict: For each name a template: a DTensor, a `DVariable` or a `jax.ShapeDtypeStruct` with a
            sharding. The restored tensor gets its shape, dtype and layout.

    Raises:
        TensorError: A template does not live on a mesh.
        LayoutError: A template lives over other devices than the mesh.
        CheckpointError: There is no complete checkpoint, a name is not in it, or it has another shape there.
        ProgramError: A template is traced.

    Example:
        >>> import numpy as np
        >>> import tempfile
        >>> mesh = rx.dtensor.create_mesh([("x", 8)])
        >>> x = rx.dtensor.relayout(np.arange(8.0), rx.dtensor.Layout(["x"], mesh))
        >>> folder = rx.dtensor.name_based_save(mesh, tempfile.mkdtemp() + "/x", {"x": x})
        >>> rx.dtensor.name_based_restore(mesh, folder, {"x": x})["x"].sum().item()
        28.0
    """
    mesh = Mesh.of(mesh)
    wanted = {}
    for name, template in name_tensor_dict.items():
        value = template.value if isinstance(template, DVariable) else template
        layout = _layout_on(mesh, name, value)
        wanted[name] = jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=layout.to_sharding())
    return OrderedDict((name, jnp.asarray(value)) for name, value in read_arrays(directory, wanted).items())


@explained
def saved_tensors(directory: Directory) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns the names, shapes and stored dtypes of the tensors in a checkpoint.

    Raises:
        CheckpointError: There is no complete checkpoint.

    Example:
        >>> import numpy as np
        >>> import tempfile
        >>> mesh = rx.dtensor.create_mesh([("x", 8)])
        >>> x = rx.dtensor.relayout(np.zeros(8, np.float32), rx.dtensor.Layout(["x"], mesh))
        >>> rx.dtensor.saved_tensors(rx.dtensor.sharded_save(mesh, tempfile.mkdtemp() + "/x", ["x"], [x]))["x"].shape
        (8,)
    """
    return {name: jax.ShapeDtypeStruct(entry.shape, entry.dtype) for name, entry in entries(directory).items()}


def _layout_on(mesh: Mesh, name: str, tensor: object) -> Layout:
    if is_traced(tensor):
        raise ProgramError(f"Tensor {name!r} is traced: save and restore outside of functions.")
    layout = layout_of(tensor) if isinstance(tensor, (jax.Array, jax.ShapeDtypeStruct)) else None
    if layout is None:
        raise TensorError(f"Tensor {name!r} is not a DTensor, got {type(tensor).__name__}: {tensor!r:.100}.")
    if layout.mesh.global_devices() != mesh.global_devices():
        raise LayoutError(f"Tensor {name!r} lives over {layout.mesh!r}, not over {mesh!r}.")
    return layout
