"""Steps in TensorFlow's style, `train_step(self, data)`, as Keras's functional ones.

On JAX Keras calls `train_step(self, state, data)`, where the state are the values of all variables, and takes the new
state from it. A model that defines `train_step(self, data)` reads and assigns its variables instead, as on TensorFlow,
and takes gradients by `rx.value_and_grad`. It is traced in a frame that has the values, and that knows the new ones.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax

import replicax.context as context
from replicax.contracts.variable_access import AssignableLike
from replicax.errors import ArgumentError
from replicax.program.frames import OverrideFrame
from replicax.program.gradients.autodiff import stored_by
from replicax.program.keras.state import keras_scope
from replicax.typing import PyTree

_State = tuple[list[jax.Array], ...]


def takes_data(step: Callable[..., Any]) -> bool:
    """Returns whether a model's step takes the data alone, and not the values of the variables before it."""
    signature = inspect.signature(step)
    for arguments in ((None, None), (None,)):
        try:
            signature.bind(*arguments)
        except TypeError:
            continue
        return len(arguments) == 1
    name = getattr(step, "__qualname__", repr(step))
    raise ArgumentError(
        f"{name}{signature} is no step of a model. Define it as on TensorFlow, {step.__name__}(self, data), with "
        "rx.value_and_grad for gradients; or as Keras has it on JAX, with the values of the variables before the data: "
        f"{step.__name__}(self, state, data)."
    )


def functional(
    step: Callable[[PyTree], PyTree], find_groups: Callable[[], Sequence[Sequence[AssignableLike]]]
) -> Callable[[_State, PyTree], tuple[PyTree, _State]]:
    """Returns a step that takes the data alone as Keras's functional one: `(state, data) -> (outputs, state)`."""

    @functools.wraps(step)
    def with_state(state: _State, data: PyTree) -> tuple[PyTree, _State]:
        groups, outer = find_groups(), context.current().frame
        variables = list(itertools.chain(*groups))
        frame = OverrideFrame(outer, variables, itertools.chain(*state))
        frame.is_of_loss = False
        with context.entered(frame=frame), keras_scope():
            outputs = step(data)
            frame.update_rows_at_end()
            new = [[frame.read(variable) for variable in group] for group in groups]
        known = set(map(id, variables))
        for variable, value in zip(frame.written.values(), frame.new_values(), strict=True):
            if id(variable) not in known:
                stored_by(variable, value, outer)
        return outputs, tuple(new)

    del with_state.__wrapped__  # It has another signature.
    return with_state
