"""Tensor and data parallelism: a layout for each variable, by rules for its layer or by patterns over its path."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import jax
from jax.sharding import Mesh, PartitionSpec

from replicax.checks import checked_int
from replicax.cluster import ClusterResolver
from replicax.collectives import CommunicationOptions, CrossDeviceOps, NcclAllReduce
from replicax.contracts.variable_access import VariableLike, was_made
from replicax.errors import ArgumentError
from replicax.group.health import DEFAULT_STALL_TIMEOUT_S
from replicax.layouts import MIN_SIZE, AutomaticRules, LayoutLike, Layouts, PatternRules, Rules
from replicax.runtime.mesh import REPLICA_AXIS
from replicax.runtime.precision import checked_precision
from replicax.strategies.base import listed
from replicax.strategies.mesh_grid import MODEL, Grid, grid_of_mesh, grid_of_shape
from replicax.strategies.mesh_placement import MeshPlacement
from replicax.strategies.mesh_strategy import MeshStrategy
from replicax.strategies.offloading import offloaded
from replicax.strategies.workers import START_TIMEOUT_S, Workers

if TYPE_CHECKING:
    import keras

_KINDS = ("auto", "fsdp", "tensor")
_MeshLike: TypeAlias = "Mesh | keras.distribution.DeviceMesh"
_Layout: TypeAlias = "str | Mapping[str, LayoutLike] | Callable[[keras.distribution.DeviceMesh], object]"


class LayoutStrategy(MeshStrategy):
    """Cuts variables over a mesh as rules or patterns say, and batches over its first axis.

    Each position along the mesh's first axis is a replica; the devices along the other axes share its work, XLA's
    partitioner deciding how. Optimizer state is laid out like the parameter that it belongs to. `explain` tells which
    rule has decided about each variable; a large one of which every device holds a copy is told when training begins.

    Args:
        mesh: A `jax.sharding.Mesh` or a `keras.distribution.DeviceMesh`, such as one of shape `(4, 2)` with axes
            `("batch", "model")`, of devices of this process, or of all workers that are connected. The axis called
            `"model"` is the model's, otherwise the last of several.
        layout: One of

            - `"fsdp"`: a variable is cut along its longest dimension that the first axis divides.
            - `"tensor"`: the pairs of matrices of attention and of MLPs, embeddings and convolutions are sharded over
              the model's axis, as Megatron-LM does; the type of layer decides (Shoeybi et al., 2019).
            - `"auto"`: both, as far as the mesh has both axes.
            - a mapping from a regular expression, searched for in a variable's path, to its layout: for each dimension
              the name of the mesh axis that cuts it, or None. The first pattern that matches counts; variables that
              none matches are mirrored. A `keras.distribution.LayoutMap` works too.
            - a function that returns one of a `keras.distribution.DeviceMesh`, such as a KerasHub model's
              `get_layout_map`.
        cross_device_ops: The algorithm that combines gradients in `run`.
        communication_options: Its options.
        mesh_shape: In place of `mesh`, the sizes of its axes: `(2, 4)` for axes `("batch", "model")`, or
            `{"batch": 2, "model": 4}`; -1 for what is left. By default all devices are along the first axis, with
            `layout="tensor"` along the second.
        devices: The devices of `mesh_shape`, as for `MirroredStrategy`; by default those of all workers of the cluster.
        min_size: The rules leave variables with fewer elements whole: cutting them saves little and costs a message.
        cluster_resolver: Says who this process is; by default the environment does. See `MultiWorkerMirroredStrategy`.
        start_timeout: How long to wait for the other workers, in seconds.
        stall_timeout: For how many seconds a worker may do nothing while others wait for it, until all end with a
            report. None or 0 for no watching.
        offload_optimizer: As for `FullyShardedStrategy`.
        precision: What Keras's layers made in the scope compute in; see `MirroredStrategy`.
        layout_map: The former name of `layout`.

    Raises:
        ArgumentError: `mesh` is not a mesh, or `layout` none of these.
        DeviceError: There are not as many devices as `mesh_shape` asks for.
        LayoutError: A pattern is no regular expression, or its layout names an axis twice or one that the mesh lacks.
            When a variable is made: a pattern cuts a dimension that its axis does not divide. When training begins: a
            pattern matches no variable.
        ClusterError, ClusterTimeoutError, ContextError: As for `MultiWorkerMirroredStrategy`.

    Example:
        >>> strategy = LayoutStrategy(mesh_shape=(4, 2), layout={"up/kernel": (None, "model")})
        >>> strategy.num_replicas_in_sync
        4
    """

    waits_for_workers = True

    def __init__(
        self,
        mesh: _MeshLike | None = None,
        layout: _Layout = "auto",
        cross_device_ops: CrossDeviceOps | None = None,
        communication_options: CommunicationOptions | None = None,
        *,
        mesh_shape: int | Sequence[int] | Mapping[str, int] | None = None,
        devices: int | Sequence[str | jax.Device] | None = None,
        min_size: int = MIN_SIZE,
        cluster_resolver: ClusterResolver | None = None,
        start_timeout: float = START_TIMEOUT_S,
        stall_timeout: float | None = DEFAULT_STALL_TIMEOUT_S,
        offload_optimizer: bool = False,
        precision: str | None = None,
        layout_map: Mapping[str, LayoutLike] | None = None,
    ):
        if layout_map is not None:
            message = "LayoutStrategy(layout_map=...) is now layout=.... The old name is removed in the next release."
            warnings.warn(message, DeprecationWarning, stacklevel=2)
            layout = layout_map
        self.min_size = checked_int("min_size", min_size, note=", a number of elements")
        if mesh is None and mesh_shape is None and devices is None:
            mesh = getattr(layout, "device_mesh", None)  # a keras.distribution.LayoutMap
        if mesh is None:
            found = self._choose_devices(devices, communication_options, cluster_resolver, start_timeout, stall_timeout)
            takes_all = devices is not None or self.num_workers > 1
            self._grid = grid_of_shape(mesh_shape, found, layout == "tensor", takes_all)
        elif mesh_shape is not None or devices is not None:
            raise ArgumentError("`mesh` has a shape and devices: leave out `mesh_shape` and `devices`, or `mesh`.")
        else:
            self._grid = grid_of_mesh(mesh)
            self._set_workers(Workers.of(self._grid.devices.flat, cluster_resolver, start_timeout, stall_timeout))
        self.axis_names = self._grid.names
        self._layouts = Layouts(_rules(layout, self._grid, min_size), min_size)
        self._told: set[str] = set()
        self._has_warned = False
        if cross_device_ops is None and communication_options is None:
            cross_device_ops = NcclAllReduce(num_packs=0)  # A pack of gradients would be whole on each device.
        beside = offloaded(offload_optimizer, list(self._grid.devices.flat), min_size)
        placement = _GridPlacement(self._grid, self._layouts, self.workers, beside)
        super().__init__(placement, cross_device_ops, communication_options)
        self.precision = checked_precision(precision, self.devices)

    def adopt(self, variable: VariableLike) -> None:
        """Decides about a new variable's layout while the layers that make it are at work."""
        super().adopt(variable)
        if was_made(variable):
            self._layouts.of(variable)

    def check_layouts(self, variables: Sequence[VariableLike]) -> None:
        """Checks that each pattern is used by a variable, and warns of large variables that every device holds.

        Raises:
            LayoutError: A pattern matches none: a typing error, or a renamed layer, would otherwise go unnoticed.
        """
        for variable in variables:
            self._layouts.of(variable)
        self._layouts.check_used()
        if self.placement.mesh_for(self.num_replicas_in_sync).size == 1:
            return
        new = [line for line in self._layouts.large_and_whole(variables) if line not in self._told]
        if new:
            self._told.update(new)
            number = "a large variable" if len(new) == 1 else f"{len(new)} large variables"
            warnings.warn(
                f"{self!r} leaves {number} whole on every device: {'; '.join(new)}. "
                "strategy.explain(model) shows all layouts. A layout that cuts nothing, such as {'pattern': (None, "
                "None)}, says that this is wanted.",
                stacklevel=2,
            )

    def _check_traced(self) -> None:
        if self._layouts.has_layers:
            self.check_layouts(self._layouts.known_parameters())
        elif not self._has_warned and (unused := self._layouts.unused()):
            # No error: the model is yet to be made, or other variables may be used later.
            self._has_warned = True
            warnings.warn(unused, stacklevel=2)

    def _what_is_sharded(self) -> str:
        return "what strategy.explain(model) lists"

    def _facts(self) -> dict[str, object]:
        mesh = ", ".join(f"{name}={size}" for name, size in self._grid.sizes.items())
        return {**super()._facts(), "devices": listed(list(self._grid.devices.flat)), "mesh": mesh}

    def __repr__(self) -> str:
        return f"LayoutStrategy({self._grid.sizes})"


class _GridPlacement(MeshPlacement):
    """The placement over a user's mesh: its first axis, whatever its name, is that of the replicas."""

    def __init__(
        self,
        grid: Grid,
        layouts: Layouts,
        workers: Sequence[str],
        lives_on_host: Callable[[VariableLike], bool] | None,
    ):
        super().__init__(grid.devices, (REPLICA_AXIS, *grid.names[1:]), layouts.of, workers, lives_on_host)
        self._grid, self._layouts = grid, layouts

    def _layout(self, variable: VariableLike) -> PartitionSpec:
        return self._layouts.of(variable).spec({self._grid.names[0]: REPLICA_AXIS})

    def described(self, variable: VariableLike) -> str:
        """Returns how a variable is laid out, with the user's names of the axes."""
        decision = self._layouts.of(variable)
        return str(decision.axes) if decision.is_cut else super().described(variable)

    @property
    def axis_sizes(self) -> dict[str, int]:
        """The axes of the mesh and their sizes."""
        return self._grid.sizes


def _rules(layout: _Layout, grid: Grid, min_size: int) -> Rules:
    if isinstance(layout, str):
        if layout not in _KINDS:
            raise ArgumentError(f"`layout` is one of {_KINDS}, a mapping of patterns or a function, got {layout!r}.")
        model = MODEL if MODEL in grid.names[1:] else grid.names[-1] if len(grid.names) > 1 else None
        return AutomaticRules(layout, grid.sizes, grid.names[0], model, min_size)
    if callable(layout) and not isinstance(layout, Mapping):
        layout = layout(_keras_mesh(grid))  # type: ignore[assignment]
    if not isinstance(layout, Mapping):
        raise ArgumentError(
            "`layout` is 'auto', 'fsdp' or 'tensor', maps patterns to layouts, such as {'up/kernel': (None, 'model')}, "
            f"or is a keras.distribution.LayoutMap or a function that returns one, got {layout!r:.100}."
        )
    return PatternRules(layout, grid.sizes)


def _keras_mesh(grid: Grid) -> keras.distribution.DeviceMesh:
    import keras

    names = [f"{device.platform}:{device.id}" for device in grid.devices.flat]
    return keras.distribution.DeviceMesh(grid.devices.shape, list(grid.names), names)
