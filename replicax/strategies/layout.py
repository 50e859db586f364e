"""Tensor and data parallelism: a layout for each variable, by patterns over their paths."""

from __future__ import annotations

import difflib
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from jax.sharding import Mesh, PartitionSpec

import replicax.context as context
from replicax.collectives import CommunicationOptions, CrossDeviceOps
from replicax.errors import ArgumentError, LayoutError
from replicax.runtime.mesh import REPLICA_AXIS
from replicax.strategies.mesh_strategy import MeshStrategy
from replicax.strategies.placement import Placement
from replicax.typing import PyTree, PyTreeFunction
from replicax.variable_access import VariableLike, name_of, shape_of

if TYPE_CHECKING:
    import keras

Axes = tuple[str | None, ...]
#: A layout as users give it: axes, or an object that has them (`keras.distribution.TensorLayout`).
_Layout: TypeAlias = "Sequence[str | None] | keras.distribution.TensorLayout"

_NEAR, _MOST_PATHS = 3, 20  # paths that a message lists


class LayoutStrategy(MeshStrategy):
    """Cuts variables over a mesh as patterns say, and batches over its first axis.

    Each position along the mesh's first axis is a replica; the devices along the other axes share its work, XLA's
    partitioner deciding how. Optimizer state is laid out like the parameter that it belongs to.

    Args:
        mesh: A `jax.sharding.Mesh` or a `keras.distribution.DeviceMesh` of local devices, such as one of shape `(4, 2)`
            with axes `("batch", "model")`.
        layout_map: Maps a regular expression, searched for in a variable's path, to its layout: for each dimension the
            name of the mesh axis that cuts it, or None. The first pattern that matches counts; variables that none
            matches are mirrored. A `keras.distribution.LayoutMap` works too.
        cross_device_ops: The algorithm that combines gradients in `run`.
        communication_options: Its options.

    Raises:
        ArgumentError: `mesh` is not a mesh, or `layout_map` not a mapping.
        LayoutError: A pattern is no regular expression, or its layout names an axis twice or one that the mesh lacks.
            When training begins: a pattern matches no variable, or cuts a dimension that its axis does not divide.

    Example:
        >>> import jax, numpy as np
        >>> mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(4, 2), ("batch", "model"))
        >>> strategy = LayoutStrategy(mesh, {"up/kernel": (None, "model"), "down/kernel": ("model", None)})
        >>> strategy.num_replicas_in_sync
        4
    """

    def __init__(
        self,
        mesh: Mesh | keras.distribution.DeviceMesh,
        layout_map: Mapping[str, _Layout],
        cross_device_ops: CrossDeviceOps | None = None,
        communication_options: CommunicationOptions | None = None,
    ):
        devices, names = _devices_and_axes(mesh)
        self.axis_names = names
        self._renamed = {names[0]: REPLICA_AXIS}
        if not isinstance(layout_map, Mapping):
            raise ArgumentError(
                "`layout_map` maps patterns to layouts, such as {'up/kernel': (None, 'model')}, or is a "
                f"keras.distribution.LayoutMap, got {layout_map!r:.100}."
            )
        self._layouts = {pattern: self._checked(pattern, layout) for pattern, layout in layout_map.items()}
        self._sizes = dict(zip(names, devices.shape, strict=True))
        self._matched: set[str] = set()
        self._seen: dict[str, None] = {}  # The paths of variables that were asked for, in their order.
        self._has_run = False
        self._parameters: dict[str, tuple[tuple[int, ...], PartitionSpec]] = {}
        placement = Placement(devices, (REPLICA_AXIS, *names[1:]), self._layout)
        super().__init__(placement, cross_device_ops, communication_options)

    def _checked(self, pattern: str, layout: _Layout) -> Axes:
        try:
            re.compile(pattern)
        except re.error as error:
            raise LayoutError(f"Layout pattern {pattern!r} is no regular expression: {error}.") from None
        axes: Axes = tuple(getattr(layout, "axes", layout))
        named = [axis for axis in axes if axis is not None]
        unknown = sorted(set(named) - set(self.axis_names))
        if unknown or len(set(named)) < len(named):
            raise LayoutError(
                f"The layout {axes} of pattern {pattern!r} must name each mesh axis at most once, and only axes of the "
                f"mesh: {self.axis_names}. Use None for a dimension that is not cut."
            )
        return axes

    def _layout(self, variable: VariableLike) -> PartitionSpec:
        path, shape = name_of(variable), shape_of(variable)
        self._seen.setdefault(path)
        slot = self._layout_of_slot(path, shape)
        if slot is not None:
            return slot
        pattern = next((p for p in self._layouts if re.search(p, path)), None)
        if pattern is None:
            return PartitionSpec()
        axes = self._layouts[pattern]
        self._check_fits(pattern, axes, path, shape)
        self._matched.add(pattern)
        spec = PartitionSpec(*(self._renamed.get(axis, axis) if axis else None for axis in axes))
        self._parameters[path.replace("/", "_")] = (shape, spec)
        return spec

    def _layout_of_slot(self, path: str, shape: tuple[int, ...]) -> PartitionSpec | None:
        """Keras names an optimizer's state after the parameter: `adam/<path with underscores>_momentum`."""
        name = path.rsplit("/", 1)[-1]
        for parameter, (parameter_shape, spec) in self._parameters.items():
            if name.startswith(f"{parameter}_") and shape == parameter_shape:
                return spec
        return None

    def _check_fits(self, pattern: str, axes: Axes, path: str, shape: Sequence[int]) -> None:
        fits = len(axes) == len(shape) and all(
            axis is None or length % self._sizes[axis] == 0 for axis, length in zip(axes, shape, strict=True)
        )
        if not fits:
            raise LayoutError(
                f"Variable {path!r} of shape {tuple(shape)} cannot have the layout {axes} of pattern {pattern!r}: it "
                f"needs one entry for each dimension, and the mesh axes {self._sizes} must divide what they cut."
            )

    def check_layouts(self, variables: Sequence[VariableLike]) -> None:
        """Checks that each pattern of the layout map is used by one of a model's variables.

        Raises:
            LayoutError: A pattern matches none: a typing error, or a renamed layer, would otherwise go unnoticed.
        """
        for variable in variables:
            self._layout(variable)
        unused = [pattern for pattern in self._layouts if pattern not in self._matched]
        if unused:
            raise LayoutError(_said_of_unused(unused, [name_of(variable) for variable in variables]))

    def _run(
        self, fn: PyTreeFunction, args: tuple[PyTree, ...], kwargs: dict[str, PyTree], donate: tuple[int, ...]
    ) -> PyTree:
        result = super()._run(fn, args, kwargs, donate)
        if not self._has_run and context.current().frame is None:
            self._has_run = True
            unused = [pattern for pattern in self._layouts if pattern not in self._matched]
            if unused:
                # No error: other variables may be used later.
                warnings.warn(_said_of_unused(unused, list(self._seen)), stacklevel=4)
        return result

    def _why_mirrored(self, variable: VariableLike) -> str:
        path = name_of(variable)
        if any(re.search(pattern, path) for pattern in self._layouts):
            return "its pattern cuts nothing"
        return "no pattern matches its path"

    def __repr__(self) -> str:
        return f"LayoutStrategy({self._sizes})"


def _said_of_unused(patterns: Sequence[str], paths: Sequence[str]) -> str:
    near = {pattern: difflib.get_close_matches(pattern, paths, n=_NEAR, cutoff=0.3) for pattern in patterns}
    hints = [f"Near {pattern!r}: {', '.join(found)}." for pattern, found in near.items() if found]
    shown = ", ".join(paths[:_MOST_PATHS]) + (f" and {len(paths) - _MOST_PATHS} more" * (len(paths) > _MOST_PATHS))
    return " ".join(
        [
            f"The layout patterns {list(patterns)} match no variable. A pattern is a regular expression that is "
            "searched for in a variable's path.",
            *hints,
            f"The variables are: {shown or 'none yet'}.",
        ]
    )


def _devices_and_axes(mesh: Mesh | keras.distribution.DeviceMesh) -> tuple[np.ndarray, tuple[str, ...]]:
    if isinstance(mesh, Mesh):
        return mesh.devices, tuple(mesh.axis_names)
    backend = getattr(mesh, "backend_mesh", None)  # a keras.distribution.DeviceMesh
    if isinstance(backend, Mesh):
        return backend.devices, tuple(backend.axis_names)
    raise ArgumentError(f"`mesh` is a jax.sharding.Mesh or a keras.distribution.DeviceMesh, got {mesh!r:.100}.")
