"""Layouts that follow from the mesh and from what each variable is: `"auto"`, `"fsdp"` and `"tensor"`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from replicax.contracts.variable_access import VariableLike, name_of, shape_of
from replicax.layouts.decisions import Axes, Decision, over_data, whole
from replicax.layouts.roles import Role, role_of
from replicax.runtime.mesh import longest_divisible


class AutomaticRules:
    """Cuts variables over the axis of the data, over that of the model, or over both."""

    # `kind` is `"fsdp"`, `"tensor"`, or `"auto"` for both. Batches are split over the axis `data`; the devices along
    # `model` share the work of a replica.

    def __init__(self, kind: str, sizes: Mapping[str, int], data: str, model: str | None, min_size: int):
        self._kind, self._sizes, self._min_size = kind, sizes, min_size
        self._data = data if kind != "tensor" else None
        self._model = model if kind != "fsdp" and model is not None and sizes[model] > 1 else None

    def unused(self) -> Sequence[str]:
        """Returns an empty list: there are no patterns."""
        return []

    def decide(self, variable: VariableLike) -> Decision:
        """Returns the layout of a variable; it depends on its shape and on the layers that made it."""
        shape = shape_of(variable)
        if self._model is None:
            if self._data is None:
                return whole(shape, f"layout={self._kind!r}: one device makes a replica")
            return _named(role_of(variable), over_data(shape, self._data, self._sizes[self._data], self._min_size))
        role = role_of(variable)
        decision = self._over_model(role, shape)
        if self._data is None or math.prod(shape) < self._min_size:
            return decision
        return self._also_over_data(decision, shape)

    def _over_model(self, role: Role, shape: tuple[int, ...]) -> Decision:
        assert self._model is not None
        if role.kernel is not None:
            return self._as_kernel(role, role.kernel, shape)
        size, parts = math.prod(shape), self._sizes[self._model]
        if not role.cuts:
            return whole(shape, f"{role.name}: {role.why_whole}" if role.name != role.why_whole else role.name)
        if size < self._min_size:
            return whole(shape, f"{role.name}: {size} elements, fewer than min_size={self._min_size}")
        best = role.cuts[0]
        missed = f"{shape[best.dimension]} {best.entries} are not divisible by {self._model!r}={parts}"
        for cut in role.cuts:
            if shape[cut.dimension] and shape[cut.dimension] % parts == 0:
                axes = tuple(self._model if i == cut.dimension else None for i in range(len(shape)))
                shortfall = "" if cut is best else missed
                return Decision(axes, f"{role.name}: {cut.entries} over {self._model!r}", shortfall)
        return whole(shape, role.name, f"{missed}, nor is any other dimension")

    def _as_kernel(self, role: Role, kernel: VariableLike, shape: tuple[int, ...]) -> Decision:
        of_kernel = self._over_model(role_of(kernel), shape_of(kernel)).axes
        axes: Axes = tuple(None if i is None else of_kernel[i] for i in role.kernel_dimensions)
        return Decision(axes, f"{role.name}: as {name_of(kernel)}")

    def _also_over_data(self, decision: Decision, shape: tuple[int, ...]) -> Decision:
        assert self._data is not None
        parts = self._sizes[self._data]
        if parts == 1:
            return decision
        cut = longest_divisible(shape, parts, (i for i, axis in enumerate(decision.axes) if axis is not None))
        if cut is None and all(axis is not None for axis in decision.axes):
            return decision
        if cut is None:
            missing = f"{self._data!r}={parts} divides no other dimension"
            return decision._replace(shortfall="; ".join(filter(None, (decision.shortfall, missing))))
        axes = tuple(self._data if i == cut else axis for i, axis in enumerate(decision.axes))
        return decision._replace(axes=axes, rule=f"{decision.rule}, the longest other dimension over {self._data!r}")


def _named(role: Role, decision: Decision) -> Decision:
    return decision._replace(rule=": ".join(filter(None, (role.name, decision.rule))))
