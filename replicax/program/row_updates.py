"""Work that is done when the gradients of a loss are known, beside that of optimizers: rows of tables are updated.

A table is no variable that an optimizer sees. Its rows are updated where gradients are computed, and that is right if
these are the gradients that an optimizer applies afterwards. Each table has a trainable variable, its hook, of which
the optimizer gets a gradient of zeros: from the assignment of the hook it is known that they were.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax

from replicax.context import RowsOwner
from replicax.contracts.variable_access import VariableLike
from replicax.errors import ProgramError

IN_PARTS = (
    "rx.accumulate_gradients computes the gradients of micro-batches, and would update rows after each. Call "
    "rx.value_and_grad with the whole batch, or freeze the layer: layer.trainable = False."
)
OWN = (
    "aggregation=None leaves each replica its own gradients, but rows belong to all of them. Let rx.value_and_grad "
    "combine gradients: aggregation='sum' or 'mean'."
)
BY_HAND = (
    "their gradients were computed by jax.grad, of which it is not known how replicas combine it. Use "
    "rx.value_and_grad(loss_fn, model.trainable_variables), which combines gradients and updates rows alike."
)


class _Waiting(NamedTuple):
    owner: RowsOwner
    update_rows: Callable[[float], None]


class _Updated(NamedTuple):
    owner: RowsOwner
    hook: jax.Array


class RowUpdates:
    """The things to be done in one function, and those that were done."""

    def __init__(self) -> None:
        self._waiting: dict[int, _Waiting] = {}
        self._updated: dict[int, _Updated] = {}

    def waiting(self, owner: RowsOwner, make: Callable[[], Callable[[float], None]]) -> Callable[[float], None]:
        """Returns what an owner has to do; `make` makes it when there is nothing yet."""
        if id(owner) not in self._waiting:
            self._waiting[id(owner)] = _Waiting(owner, make())
        return self._waiting[id(owner)].update_rows

    def update_rows(
        self, read: Callable[[VariableLike], jax.Array], factor: float, refused: str | None, is_checked: bool
    ) -> None:
        """Does what is to be done for the gradients of one loss, which are multiplied by `factor`."""
        # It is checked that an optimizer applies the gradients, if there are gradients of other variables, too.
        while self._waiting:
            key, (owner, update_rows) = self._waiting.popitem()
            if refused is not None:
                raise ProgramError(f"The rows of {owner!r} cannot be updated: {refused}")
            hook = read(owner.hook)
            is_known = not isinstance(hook, jax.core.Tracer)
            before = owner.last_hook if is_known else self._updated[key].hook if key in self._updated else None
            if is_checked and before is hook:
                raise ProgramError(
                    f"The rows of {owner!r} would be updated twice: gradients of two losses were computed, and no "
                    "optimizer has applied the first ones in between. Add the losses up in one function for one "
                    "rx.value_and_grad; or differentiate the others with respect to variables without those of the "
                    "layer."
                )
            update_rows(factor)
            if is_checked:
                self._updated[key] = _Updated(owner, hook)
            if is_checked and is_known:
                owner.last_hook = hook

    def end(
        self,
        read: Callable[[VariableLike], jax.Array],
        holds: Callable[[VariableLike], bool],
        refused: str | None,
    ) -> None:
        """Does what is left, and checks that the gradients were applied."""
        unused = [owner for owner, hook in self._updated.values() if read(owner.hook) is hook]
        unused += [owner for owner, _ in self._waiting.values() if not holds(owner.hook)]
        if unused:
            raise ProgramError(
                f"Gradients were computed with which the rows of {unused[0]!r} are updated, but in the same function "
                "no optimizer has applied them to the other variables. Apply the gradients of "
                "model.trainable_variables where they are computed. If they are only looked at, differentiate with "
                "respect to variables without those of the layer, or freeze it: layer.trainable = False."
            )
        self._updated.clear()
        self.update_rows(read, 1.0, refused, is_checked=False)
