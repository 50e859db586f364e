"""Layouts: how the dimensions of a tensor are sharded over the dimensions of a mesh."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import jax
from jax.sharding import NamedSharding, PartitionSpec, Sharding

import replicax.context as context
from replicax.contracts.advice import Advised
from replicax.contracts.called_as import called_as
from replicax.contracts.shown import Shown
from replicax.dtensor.mesh import Mesh, MeshLike
from replicax.dtensor.specs import (
    MATCH,
    UNSHARDED,
    Spec,
    checked_rank,
    checked_specs,
    dims_of,
    partition_spec,
    specs_of,
    text_of,
)
from replicax.errors import LayoutError

if TYPE_CHECKING:
    import keras

    from replicax.dtensor.visualize import LayoutPicture

_STRING = re.compile(r"sharding_specs:(?P<specs>.*?) mesh:(?P<mesh>.*)", re.DOTALL)


class Layout(Advised):
    """How a tensor is sharded over a mesh; immutable.

    Args:
        sharding_specs: An entry for each dimension of the tensor: the name of the mesh dimension that shards
            it, `UNSHARDED`, or `MATCH` (for `relayout`: as it is). A tuple of names shards a dimension by several mesh
            dimensions, the first one coarsest. Each mesh dimension can be used once.
        mesh: A `Mesh`, a `jax.sharding.Mesh` or a `keras.distribution.DeviceMesh`; by default that of the enclosing
            `default_mesh`.

    Raises:
        LayoutError: An entry is not a dimension of the mesh, or one is used twice, or there is no mesh.
        MeshError: `mesh` is not a mesh.

    Attributes:
        sharding_specs: Tuple of the entries.
        mesh: The `Mesh`.

    Example:
        >>> from replicax.dtensor import create_mesh
        >>> mesh = create_mesh([("batch", 4), ("model", 2)])
        >>> layout = Layout(["batch", UNSHARDED], mesh)
        >>> layout.local_shape((128, 784))
        (32, 784)
        >>> layout.delete([0]).sharding_specs
        ('unsharded',)
    """

    def __init__(self, sharding_specs: Sequence[Spec], mesh: MeshLike | None = None):
        mesh = context.current().default_mesh if mesh is None else mesh
        if mesh is None:
            raise LayoutError(
                "A layout needs a mesh: pass one, or make it inside `with rx.dtensor.default_mesh(mesh)`."
            )
        self.mesh = Mesh.of(mesh)
        self.sharding_specs = checked_specs(sharding_specs, self.mesh)
        self._sharding = NamedSharding(self.mesh.jax_mesh, partition_spec(self.sharding_specs))
        self._frozen = True

    def __setattr__(self, attribute: str, value: object) -> None:
        if getattr(self, "_frozen", False):
            raise AttributeError(f"A Layout is immutable: cannot set {attribute!r}. Make another one.")
        super().__setattr__(attribute, value)

    # Making layouts.

    @classmethod
    def replicated(cls, mesh: MeshLike, rank: int) -> Layout:
        """Returns the layout that shards nothing: every device holds the whole tensor."""
        return cls([UNSHARDED] * checked_rank(rank), mesh)

    @classmethod
    def batch_sharded(cls, mesh: MeshLike, batch_dim: str, rank: int, axis: int = 0) -> Layout:
        """Returns the layout that shards one dimension, `axis`, over the mesh dimension `batch_dim`.

        Raises:
            LayoutError: The mesh has no such dimension, or the tensor no such axis.
        """
        rank = checked_rank(rank)
        if not -rank <= axis < rank:
            raise LayoutError(f"A tensor of rank {rank} has no axis {axis} to shard.")
        specs = [UNSHARDED] * rank
        specs[axis] = batch_dim
        return cls(specs, mesh)

    @classmethod
    def inner_sharded(cls, mesh: MeshLike, inner_dim: str, rank: int) -> Layout:
        """Returns the layout that shards the last dimension over the mesh dimension `inner_dim`.

        Raises:
            LayoutError: The mesh has no such dimension, or the rank is 0.
        """
        return cls.batch_sharded(mesh, inner_dim, rank, axis=-1)

    @classmethod
    def from_sharding(cls, sharding: Sharding, rank: int) -> Layout:
        """Returns the layout of a tensor of rank `rank` with a `jax.sharding.NamedSharding`.

        Raises:
            LayoutError: It is another kind of sharding, or for a lower rank.
        """
        if not isinstance(sharding, NamedSharding) or not isinstance(sharding.mesh, jax.sharding.Mesh):
            raise LayoutError(f"Only a NamedSharding over devices has a layout, got {sharding!r:.200}.")
        return cls(specs_of(sharding.spec, rank), sharding.mesh)

    @classmethod
    def from_keras(cls, tensor_layout: keras.distribution.TensorLayout) -> Layout:
        """Returns a `keras.distribution.TensorLayout` as a layout.

        Raises:
            LayoutError: It has no axes or no device mesh.
        """
        axes, mesh = getattr(tensor_layout, "axes", None), getattr(tensor_layout, "device_mesh", None)
        if axes is None or mesh is None:
            raise LayoutError(f"Not a keras.distribution.TensorLayout with a device mesh: {tensor_layout!r:.100}.")
        return cls([UNSHARDED if axis is None else axis for axis in axes], mesh)

    @classmethod
    @called_as("tf.experimental.dtensor.Layout.from_string")
    def from_string(cls, text: str) -> Layout:
        """Returns the layout that `to_string` wrote.

        Raises:
            LayoutError, MeshError, DeviceError: `text` is not of that form, or its devices do not exist here.
        """
        found = _STRING.fullmatch(text) if isinstance(text, str) else None
        if found is None:
            raise LayoutError(f"A layout is written 'sharding_specs:x,unsharded, mesh:...', got {text!r:.200}.")
        specs = [tuple(spec.split("+")) if "+" in spec else spec for spec in found["specs"].split(",") if spec]
        return cls(specs, Mesh.from_string(found["mesh"]))

    @classmethod
    def from_single_device_mesh(cls, mesh: MeshLike, rank: int = 0) -> Layout:
        """Returns the layout of a tensor of rank `rank` on a mesh of one device.

        Raises:
            LayoutError: The mesh has several devices. (TensorFlow's is for tensors of any rank.)
        """
        mesh = Mesh.of(mesh)
        if not mesh.is_single_device():
            raise LayoutError(f"{mesh!r} has {mesh.size} devices, not one. Use Layout.replicated(mesh, rank).")
        return cls.replicated(mesh, rank)

    @classmethod
    def from_device(cls, device: str | jax.Device, rank: int = 0) -> Layout:
        """Returns the layout of a tensor of rank `rank` on one device, such as `"cpu:0"`.

        Raises:
            DeviceError: There is no such device.
        """
        return cls.from_single_device_mesh(Mesh.from_device(device), rank)

    def to_parted(self) -> Layout:
        """Returns the layout itself. (TensorFlow's parted layouts are for tensors with shards of unequal size.)"""
        return self

    def delete(self, dims: int | Sequence[int]) -> Layout:
        """Returns the layout without a dimension or some, for instance that of a bias from that of its kernel.

        Raises:
            LayoutError: There is no such dimension. (TensorFlow ignores it.)
        """
        dims = [dims] if isinstance(dims, int) else dims
        positions = {dim + self.rank if dim < 0 else dim for dim in dims}
        if not positions <= set(range(self.rank)):
            raise LayoutError(f"{self!r} has dimensions 0 to {self.rank - 1}, cannot delete {list(dims)}.")
        return Layout([spec for i, spec in enumerate(self.sharding_specs) if i not in positions], self.mesh)

    # Facts.

    @property
    def rank(self) -> int:
        """Number of dimensions of the tensor."""
        return len(self.sharding_specs)

    @property
    def type(self) -> str:
        """`"single_device"` on a mesh of one device, otherwise `"static"`: shards are of equal size."""
        return "single_device" if self.is_single_device() else "static"

    @property
    def shape(self) -> tuple[int, ...]:
        """The *mesh's* shape, as in TensorFlow; see `num_shards` for a dimension of the tensor."""
        return self.mesh.shape()

    def num_shards(self, axis: int) -> int:
        """Returns the number of shards of a dimension of the tensor.

        Raises:
            LayoutError: There is no such dimension, or it is `MATCH`.
        """
        if not -self.rank <= axis < self.rank:
            raise LayoutError(f"{self!r} has no dimension {axis}.")
        spec = self.sharding_specs[axis]
        if spec == MATCH:
            raise LayoutError(f"Dimension {axis} of {self!r} is {MATCH!r}: only relayout knows how it is sharded.")
        return math.prod(self.mesh.dim_size(name) for name in dims_of(spec))

    def is_fully_replicated(self) -> bool:
        """Returns whether no dimension is sharded; a mesh dimension of size 1 counts as sharding one."""
        return all(spec == UNSHARDED for spec in self.sharding_specs)

    def is_batch_parallel(self) -> bool:
        """Returns whether the first dimension is sharded and no other."""
        return (
            self.rank > 0
            and self.sharding_specs[0] not in (UNSHARDED, MATCH)
            and self.delete([0]).is_fully_replicated()
        )

    def is_single_device(self) -> bool:
        """Returns whether the mesh has one device only."""
        return self.mesh.is_single_device()

    def local_shape(self, global_shape: Sequence[int]) -> tuple[int, ...]:
        """Returns the shape of the shard that one device holds.

        Raises:
            LayoutError: The rank is another one, or the shards would not be of equal size.
        """
        self.check_shape(global_shape)
        return tuple(length // self.num_shards(axis) for axis, length in enumerate(global_shape))

    def global_shape(self, local_shape: Sequence[int]) -> tuple[int, ...]:
        """Returns the shape of the tensor whose shards have the shape `local_shape`.

        Raises:
            LayoutError: The rank is another one.
        """
        self.check_rank(local_shape)
        return tuple(length * self.num_shards(axis) for axis, length in enumerate(local_shape))

    local_shape_from_global_shape = local_shape
    global_shape_from_local_shape = global_shape

    def offset_to_shard(self) -> list[tuple[int, ...]]:
        """Returns, for each device of the mesh, the index of its shard in each dimension; 0 where not sharded."""
        return [tuple(self._offset(spec, place) for spec in self.sharding_specs) for place in self.mesh.unravel_index()]

    @called_as("tf.experimental.dtensor.Layout.offset_tuple_to_global_index")
    def offset_tuple_to_global_index(self, offset: Sequence[int]) -> int:
        """Returns the index of a shard in row-major order.

        Raises:
            LayoutError: There is no such shard.
        """
        shards = [self.num_shards(axis) for axis in range(self.rank)]
        if len(offset) != self.rank or any(not 0 <= i < n for i, n in zip(offset, shards, strict=False)):
            raise LayoutError(f"{self!r} has {shards} shards by dimension, so there is none at {tuple(offset)}.")
        return functools.reduce(lambda index, pair: index * pair[1] + pair[0], zip(offset, shards, strict=True), 0)

    def _offset(self, spec: Spec, place: dict[str, int]) -> int:
        return functools.reduce(lambda i, name: i * self.mesh.dim_size(name) + place[name], dims_of(spec), 0)

    def visualize(self, shape: Sequence[int] | None = None) -> LayoutPicture:
        """Returns a picture of which device holds which shard of a tensor; print it or let a notebook show it.

        Args:
            shape: The tensor's shape; the picture then shows the indices of each shard.

        Returns:
            A `LayoutPicture`.

        Raises:
            LayoutError: A tensor of that shape cannot have the layout, or a dimension is `MATCH`.
        """
        from replicax.dtensor.visualize import LayoutPicture  # loads rich, which only pictures need

        if shape is not None:
            self.check_shape(shape)
        axes = [("+".join(dims_of(spec)), self.num_shards(axis)) for axis, spec in enumerate(self.sharding_specs)]
        return LayoutPicture(repr(self), axes, self.offset_to_shard(), self.mesh.global_devices(), shape)

    # Checking.

    def check_rank(self, shape: Sequence[int]) -> None:
        """Checks that a tensor of this shape has as many dimensions as the layout.

        Raises:
            LayoutError: It has not.
        """
        if len(shape) != self.rank:
            raise LayoutError(
                f"{self!r} is for tensors of rank {self.rank}, got shape {tuple(shape)} of rank {len(shape)}. Use one "
                "entry for each dimension, UNSHARDED for those that are not sharded."
            )

    def check_shape(self, shape: Sequence[int]) -> None:
        """Checks that a tensor of this shape has shards of equal size.

        Raises:
            LayoutError: The rank is another one, or a dimension does not divide.
        """
        self.check_rank(shape)
        for axis, length in enumerate(shape):
            if length % self.num_shards(axis):
                raise LayoutError(
                    f"Dimension {axis} of a tensor of shape {tuple(shape)} has length {length}, which "
                    f"{self.sharding_specs[axis]!r} of {self.mesh!r} cannot split into {self.num_shards(axis)} "
                    "equal shards. XLA stores arrays in equal shards only. Inside a compiled function any length can "
                    "be sharded (relayout there); between functions leave this dimension UNSHARDED, or pad it."
                )

    # Converting.

    @property
    def partition_spec(self) -> PartitionSpec:
        """The entries as JAX writes them; `MATCH` becomes `PartitionSpec.UNCONSTRAINED`."""
        return self._sharding.spec

    def to_sharding(self) -> NamedSharding:
        """Returns the layout as a `jax.sharding.NamedSharding`."""
        return self._sharding

    def to_keras(self) -> keras.distribution.TensorLayout:
        """Returns the layout as a `keras.distribution.TensorLayout`.

        Raises:
            LayoutError: A dimension is `MATCH` or sharded by several mesh dimensions, which Keras cannot express.
        """
        import keras

        beyond = [spec for spec in self.sharding_specs if spec == MATCH or isinstance(spec, tuple)]
        if beyond:
            raise LayoutError(f"keras.distribution.TensorLayout cannot express {beyond[0]!r}, in {self!r}.")
        axes = [None if spec == UNSHARDED else spec for spec in self.sharding_specs]
        mesh = keras.distribution.DeviceMesh(
            self.mesh.shape(), list(self.mesh.dim_names), [str(device) for device in self.mesh.global_devices()]
        )
        return keras.distribution.TensorLayout(axes, mesh)

    def to_string(self) -> str:
        """Returns a text from which `from_string` makes an equal layout."""
        specs = "".join(f"{text_of(spec)}," for spec in self.sharding_specs)
        return f"sharding_specs:{specs} mesh:{self.mesh.to_string()}"

    def __reduce__(self) -> tuple[Callable[[str], Layout], tuple[str]]:
        return Layout.from_string, (self.to_string(),)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Layout):
            return NotImplemented
        return self.sharding_specs == other.sharding_specs and self.mesh == other.mesh

    def __hash__(self) -> int:
        return hash((self.sharding_specs, self.mesh))

    def _repr_html_(self) -> str:
        if MATCH in self.sharding_specs:
            return str(Shown(repr(self)).html)
        return self.visualize()._repr_html_()

    def __repr__(self) -> str:
        specs = ", ".join(map(text_of, self.sharding_specs))
        return f"Layout([{specs}], {self.mesh!r})"
