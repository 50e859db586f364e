"""DVariable: a variable that lives over a mesh in a fixed layout."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.typing import DTypeLike

import replicax.context as context
from replicax.checks import explained
from replicax.compat.jax_tracing import constants_are_traced
from replicax.contracts.called_as import called_as
from replicax.contracts.shown import Shown
from replicax.dtensor.arrays import TensorLike, as_array, checked_layout, is_traced, laid_out, layout_of
from replicax.dtensor.creation import call_with_layout
from replicax.dtensor.layout import MATCH, Layout
from replicax.errors import ContextError, LayoutError, VariableError
from replicax.variables import Variable


class DVariable(Variable):
    """A variable over a mesh. Its layout is fixed, whatever is assigned to it.

    Programs (`rx.function`) update it in place and keep its layout; `rx.value_and_grad` returns gradients in that
    layout; Keras optimizers lay out their state like it. It does not belong to a strategy, and `strategy.run` cannot
    use it.

    Args:
        initial_value: DTensor, plain array, number, or a function without arguments that returns one. The
            result of a function is made in the layout (see `call_with_layout`).
        layout: The layout; by default that of the initial value, which must be a DTensor then.
        trainable: Whether optimizers should train it.
        dtype: Dtype of the variable; by default the initial value's.
        name: Name for messages and checkpoints.

    Raises:
        LayoutError: There is no layout, it does not fit, or the initial value is a DTensor with another layout.

    Attributes:
        layout: The `Layout`.
        save_as_bf16: Whether checkpoints store it as bfloat16 (see `enable_save_as_bf16`); float32 variables only.

    Example:
        >>> import numpy as np
        >>> mesh = rx.dtensor.create_mesh([("x", 2), ("y", 4)])
        >>> variable = rx.dtensor.DVariable(np.zeros((4, 8)), layout=rx.dtensor.Layout(["x", "y"], mesh))
        >>> variable.layout.sharding_specs
        ('x', 'y')
    """

    @called_as("tf.experimental.dtensor.DVariable")
    def __init__(
        self,
        initial_value: TensorLike | Callable[[], TensorLike],
        *,
        layout: Layout | None = None,
        trainable: bool = True,
        dtype: DTypeLike | None = None,
        name: str = "DVariable",
    ):
        layout = checked_layout(layout) if layout is not None else None
        # The value must be a real one, even if a function is being traced. It is then computed op by op.
        with jax.ensure_compile_time_eval() if constants_are_traced() else contextlib.nullcontext():
            if callable(initial_value) and layout is not None:
                initial_value = call_with_layout(initial_value, layout)
            value = initial_value() if callable(initial_value) else initial_value
            self._fixed = _agreed_layout(value, layout, name)
            #: Programs, Keras and optimizers look here for the placement of the value.
            self._layout: NamedSharding = self._fixed.to_sharding()
            if not is_traced(value):
                value = laid_out(value, self.layout)
        self.save_as_bf16 = False
        with context.entered(strategy=None):
            super().__init__(value, trainable=trainable, dtype=dtype, name=name)

    @property
    def layout(self) -> Layout:
        """The layout; it never changes."""
        return self._fixed

    @property
    def save_as_bf16(self) -> bool:
        """Whether checkpoints store it as bfloat16; setting it takes effect for float32 variables only."""
        return self._save_as_bf16 and self.dtype == np.float32

    @save_as_bf16.setter
    def save_as_bf16(self, enable: bool) -> None:
        self._save_as_bf16 = bool(enable)

    def assign(
        self, value: TensorLike, use_locking: object = False, name: object = None, read_value: bool = True
    ) -> jax.Array | None:
        """Replaces the value and returns the new one, in the variable's layout.

        Args:
            value: Numbers, a NumPy array, an array that JAX has placed by default, a DTensor of the same mesh in any
                layout, or a traced value. The shape is the variable's.

        Raises:
            VariableError: The shape is another one.
            TensorError: The value is not an array.
            ContextError: Called inside `strategy.run`.
            LayoutError: The value lives on another mesh, or was put on one device on purpose. Move it first with
                `copy_to_mesh(value, variable.layout)`, so that the transfer is visible in the code.
        """
        return super().assign(value, use_locking, name, read_value)

    def _check_context(self) -> None:
        current = context.current()
        if current.replica is not None or current.manual_replicas is not None:
            raise ContextError(
                f"DVariable {self.name!r} lives over {self.layout.mesh!r} and was used inside strategy.run, where each "
                "replica computes on its own. Use it in an @rx.function without run, or use an rx.Variable that was "
                "created in the strategy's scope."
            )

    def _read(self) -> jax.Array:
        self._check_context()
        return super()._read()

    def _as_array(self, value: TensorLike) -> jax.Array | np.ndarray:  # type: ignore[override]
        self._check_context()
        value = as_array(value)
        if isinstance(value, np.ndarray):
            return value.astype(self._dtype)  # Each device gets only its shard of host memory.
        if not is_traced(value):
            self._check_on_mesh(value)
        return super()._as_array(value)

    def _converted(self, value: TensorLike) -> jax.Array:
        value = self._as_array(value)
        if value.shape != self._shape:
            raise VariableError(f"Variable {self.name!r} has shape {self._shape}, was assigned shape {value.shape}.")
        return laid_out(value, self.layout)

    def _check_on_mesh(self, value: jax.Array) -> None:
        present = layout_of(value)
        mine = self.layout.mesh
        if present is not None and present.mesh.jax_mesh.devices.tolist() == mine.jax_mesh.devices.tolist():
            return
        if value.committed:
            raise LayoutError(
                f"DVariable {self.name!r} lives over {mine!r}, but was assigned a value that lives on "
                f"{present.mesh if present is not None else value.sharding!r}. Move it first: "
                "copy_to_mesh(value, variable.layout)."
            )

    def _store(self, raw: jax.Array) -> jax.Array:
        if context.current().frame is not None or is_traced(raw):
            return super()._store(raw)
        self._value = laid_out(raw, self.layout, copy=True)
        return raw

    def _initialize(self, value: jax.Array) -> None:
        with jax.ensure_compile_time_eval():
            self._value = laid_out(value, self.layout, copy=True)

    def _facts(self) -> dict[str, object]:
        return {**super()._facts(), "layout": Shown(repr(self.layout), self.layout._repr_html_())}

    def __repr__(self) -> str:
        return f"<DVariable {self.name!r} shape={self._shape} dtype={self._dtype} {self.layout!r}{self._shown_value()}>"


@explained
def enable_save_as_bf16(variables: Iterable[DVariable]) -> None:
    """Makes checkpoints store variables as bfloat16: half the size, 8 bits of precision. Only float32 variables change.

    Raises:
        VariableError: One of them is not a `DVariable`. Then none of them changes.

    Example:
        >>> import numpy as np
        >>> mesh = rx.dtensor.create_mesh([("x", 8)])
        >>> variable = rx.dtensor.DVariable(np.zeros(8, np.float32), layout=rx.dtensor.Layout(["x"], mesh))
        >>> rx.dtensor.enable_save_as_bf16([variable])
        >>> variable.save_as_bf16
        True
    """
    variables = list(variables)
    for variable in variables:
        if not isinstance(variable, DVariable):
            raise VariableError(f"Only a DVariable can be saved as bfloat16, got {variable!r:.100}.")
    for variable in variables:
        variable.save_as_bf16 = True


def _agreed_layout(value: object, layout: Layout | None, name: str) -> Layout:
    present = layout_of(value) if isinstance(value, jax.Array) and not is_traced(value) else None
    present = value.layout if isinstance(value, DVariable) else present
    if layout is None and present is None:
        raise LayoutError(
            f"DVariable {name!r} needs a layout: pass `layout`, or a DTensor as its initial value. Got "
            f"{type(value).__name__}."
        )
    if layout is None:
        assert present is not None
        return present
    if MATCH in layout.sharding_specs:
        raise LayoutError(f"DVariable {name!r} needs a layout that says how each dimension is sharded, got {layout!r}.")
    same = present is None or present.to_sharding().is_equivalent_to(layout.to_sharding(), present.rank)
    if not same:
        raise LayoutError(
            f"The initial value of DVariable {name!r} has the layout {present!r}, but `layout` is {layout!r}. Leave "
            "`layout` out, or relayout the value first."
        )
    return layout
