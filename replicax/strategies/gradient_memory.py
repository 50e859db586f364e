"""The state of gradient compression: what each replica has not sent yet, as variables of the strategy."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

import jax
import numpy as np

import replicax.context as context
from replicax.checks import explained
from replicax.collectives.compression import Compression, MemoryKind, computing_dtype
from replicax.compat.jax_tracing import outside_traces
from replicax.contracts.strategy import StrategyBase, or_null
from replicax.contracts.variable_access import VariableLike, dtype_of, is_variable, name_of, set_array, shape_of
from replicax.errors import ArgumentError
from replicax.runtime.transfer import placed_copy
from replicax.typing import PyTree
from replicax.variables import Variable

Record = dict[str, Variable]


class _KnownVariable(Variable):
    """A variable whose first value is the same in all processes: none need be asked for it, and no bytes travel."""

    def _not_computed(self, function: Callable[[], jax.Array]) -> None:
        del function

    def _initialize(self, value: jax.Array) -> None:
        with outside_traces():
            strategy, first = or_null(self.strategy), np.asarray(value)
            if self.per_replica:
                first = np.broadcast_to(first, (strategy.num_replicas_in_sync, *first.shape))
            sharding = strategy.placement.variable_sharding(self)
            assert sharding is not None  # Gradients are compressed on their way over a mesh only.
            set_array(self, placed_copy(first, sharding))


@explained
class GradientMemory(Mapping[str, Record]):
    """The state of gradient compression (`rx.collectives.Int8`, `rx.collectives.PowerSGD`): `strategy.gradient_memory`.

    For each variable whose gradient can be compressed it has a dict of variables: `"error"`, what each replica has left
    out so far (its value outside of replicas is the sum over them), and for PowerSGD `"q"`. They are made when a step
    is traced first, or by `build`. A step that differentiates the same variable in several calls of
    `rx.value_and_grad` has one dict for each call.

    Save it with the model. The sum of the errors is stored, and shared out evenly among the replicas that there are
    when it is restored:

        checkpoint = rx.Checkpoint(model=model, optimizer=optimizer, memory=strategy.gradient_memory)

    Without it training goes on too: one step's rounding is lost, and PowerSGD starts from a random `q` again. Where
    nothing is compressed (one replica, or `compression=None`) it is empty, and so is its part of a checkpoint: to go
    from there to compression or back, restore with `partial=True`.

    Args:
        strategy: The strategy.
        compression: How gradients are compressed; None if they are not.

    Example:
        >>> options = rx.CommunicationOptions(compression=rx.collectives.Int8())
        >>> strategy = rx.MirroredStrategy(communication_options=options)
        >>> type(strategy.gradient_memory).__name__
        'GradientMemory'
    """

    def __init__(self, strategy: StrategyBase, compression: Compression | None):
        self._strategy = weakref.ref(strategy)
        self._compression = compression
        self._is_built = False
        self._records: dict[str, Record] = {}
        self._first_values: dict[str, dict[str, MemoryKind]] = {}
        self._owners: dict[tuple[int, int], tuple[str, weakref.ref[VariableLike]]] = {}

    def build(self, variables: PyTree) -> None:
        """Makes the memory of the gradients of variables, as the first step would: a restore needs it to be there.

        Args:
            variables: As they are given to `rx.value_and_grad`, in the same order: `model.trainable_variables`.

        Raises:
            ArgumentError: There are none, or something else is among them.
        """
        found = jax.tree_util.tree_leaves(variables, is_leaf=is_variable)
        wrong = [each for each in found if not is_variable(each)]
        if wrong or not found:
            raise ArgumentError(
                "`variables` is a pytree of variables, such as model.trainable_variables, got "
                f"{wrong[0] if wrong else variables!r:.100}."
            )
        self.of(found, Counter())

    def reset(self) -> None:
        """Forgets what was left out, as before the first step: for a model that gets other values, or other data."""
        for key, kinds in self._first_values.items():
            for name, kind in kinds.items():
                self._records[key][name].assign(kind.initial())

    def of(self, variables: Sequence[VariableLike], calls: Counter[int]) -> list[Record]:
        """Returns the variables that are kept for gradients, by name; none for those that are not compressed.

        Args:
            variables: All variables that a loss is differentiated with respect to, whether it depends on them or not:
                their numbers in a checkpoint should not depend on that.
            calls: How often each was differentiated before in the same step, by `id`; counted on.
        """
        found, self._is_built = [], True
        for variable in variables:
            found.append(self._record(variable, calls[id(variable)]))
            calls[id(variable)] += 1
        return found

    def _record(self, variable: VariableLike, call: int) -> Record:
        shape, dtype = shape_of(variable), np.dtype(dtype_of(variable))
        if self._compression is None or self._replicas == 1 or not self._compression.compresses(shape, dtype):
            return {}
        owner = id(variable), call
        if owner not in self._owners:
            number = next(i for i in range(len(self._records) + 1) if str(i) not in self._records)
            kinds = self._compression.memory_of(shape, computing_dtype(dtype), number)
            name = f"{name_of(variable)}/compression{call or ''}"
            self._records[str(number)] = self._made(name, kinds)
            self._first_values[str(number)] = kinds
            self._owners[owner] = str(number), weakref.ref(variable, lambda _: self._forget(owner))
        return self._records[self._owners[owner][0]]

    def _made(self, name: str, kinds: Mapping[str, MemoryKind]) -> Record:
        with context.entered(strategy=self._strategy(), named_variables=None):
            return {
                each: _KnownVariable(
                    kind.initial(),
                    trainable=False,
                    dtype=kind.dtype,
                    synchronization="on_read" if kind.per_replica else "on_write",
                    aggregation="sum" if kind.per_replica else "none",
                    name=f"{name}/{each}",
                )
                for each, kind in kinds.items()
            }

    def _forget(self, owner: tuple[int, int]) -> None:
        key, _ = self._owners.pop(owner)
        del self._records[key], self._first_values[key]

    @property
    def may_be_empty(self) -> bool:
        """Whether it is right that there is nothing to remember: a checkpoint has nothing of it then."""
        return self._compresses_nothing or self._is_built

    @property
    def _compresses_nothing(self) -> bool:
        return self._compression is None or self._replicas == 1

    @property
    def _replicas(self) -> int:
        strategy = self._strategy()
        return 1 if strategy is None else strategy.num_replicas_in_sync

    def __getitem__(self, key: str) -> Record:
        return self._records[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)

    def __repr__(self) -> str:
        if self._compression is None:
            return "GradientMemory(no compression of gradients)"
        if self._compresses_nothing:
            return "GradientMemory(one replica: nothing is compressed)"
        if not self._is_built:
            return "GradientMemory(empty: call build(model.trainable_variables) first)"
        return f"GradientMemory({len(self)} gradients, {self._compression})"
