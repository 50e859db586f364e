"""The questions that programs, variables, datasets and Keras's loops ask of a strategy.

`StrategyBase` is the null object, which answers where no strategy is current: one replica, on whatever device JAX
chooses, and values that stay where they are. So a program asks, and never whether there is a strategy.
`strategies.Strategy` adds what users call.

For example, a training step under a `MirroredStrategy` on two devices:

    strategy = or_null(context.current().strategy)
    strategy.num_replicas_in_sync                    # 2
    strategy.placement.program_sharding(weight, 2)   # replicated over both devices
    strategy.placement.program_sharding(counter, 2)  # a row on each device, if it has one component for each replica
    strategy.replica_context(2, frozenset({16}))     # what `rx.get_replica_context()` returns in the step
    strategy.cuts_steps                              # False: the replicas' program updates the variables too

`or_null(None)` answers the same questions: one replica, and None (leave it where it is).
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import jax
from jax.sharding import Sharding

from replicax.contracts.advice import AdvisedContractType, advised_attribute
from replicax.contracts.placement import Placement
from replicax.contracts.reduce_op import ReduceOp
from replicax.contracts.variable_access import VariableLike
from replicax.errors import ContextError
from replicax.runtime.devices import default_devices
from replicax.runtime.precision import Precision
from replicax.typing import PyTree

if TYPE_CHECKING:
    import keras

#: Of the names of `StrategyBase`, those that users ask for, too.
_FOR_USERS = {
    *("devices", "distribute_datasets_from_function", "num_replicas_in_sync", "placement", "precision"),
    *("random_numbers", "scope"),
}
#: Where the random numbers of a replica function come from: each replica draws its own, or each row has its own.
PER_REPLICA, PER_ROW = "per_replica", "per_row"


class ReplicaContextLike(Protocol):
    """The replica that runs a step, as programs ask it; `strategies.ReplicaContext` fills it in."""

    def reduce_gradients(
        self, op: ReduceOp, gradients: Sequence[jax.Array | None], variables: Sequence[VariableLike]
    ) -> list[jax.Array | None]:
        """Combines each replica's gradients with respect to variables; None stays None."""


class CompiledStep(Protocol):
    """A compiled pure function: what `jax.jit` returns, or a program in two halves."""

    def __call__(self, *args: PyTree) -> PyTree:
        """Runs it."""

    def lower(self, *args: PyTree) -> jax.stages.Lowered:
        """Returns it as JAX lowers it, for the shapes and dtypes of these arguments."""


class KerasLoopsLike(Protocol):
    """Runs `fit` and the like in the place of Keras's loops: methods of these names."""

    @property
    def steps(self) -> object:
        """Makes the step functions: methods `train`, `test` and `predict`."""


class StrategyBase(metaclass=AdvisedContractType):
    """Runs programs. By default there is one replica, one program for a whole step, and nothing is placed."""

    placement: Placement = Placement()  # where values live
    precision: Precision | None = None  # what layers compute in; None: Keras's own policy decides
    cuts_steps = False  # whether the replicas run no further than to the gradients: `compile_cut` compiles steps
    is_asynchronous = False  # whether workers run steps on their own, on variables that live on servers
    waits_for_workers = False  # whether it may have other processes to wait for
    is_client = False  # whether it computes nothing in this process: work is sent to workers elsewhere
    counts_steps = False  # whether each program that assigns its variables is counted: `counted`
    blocks: int | None = None  # into how many blocks steps are cut, whatever the devices; None: not at all
    random_numbers = PER_REPLICA  # whether random numbers belong to rows (`PER_ROW`), or each replica draws its own
    #: Sums small values over the replicas as one, inside `shard_map`; None: each is summed by itself.
    sum_together: Callable[[list[jax.Array]], list[jax.Array]] | None = None

    if not TYPE_CHECKING:  # For a type checker every attribute would exist.
        __getattr__ = advised_attribute

    def __dir__(self) -> list[str]:
        """Returns the names for users, which a notebook completes: not those that only programs ask for."""
        asked = {name for name in vars(StrategyBase) if not name.startswith("_")} - _FOR_USERS
        return sorted(set(super().__dir__()) - asked)

    @property
    def devices(self) -> tuple[jax.Device, ...]:
        """The devices, one for each replica."""
        return tuple(default_devices()[:1])

    @property
    def num_replicas_in_sync(self) -> int:
        """Number of replicas whose gradients are combined in one step."""
        return 1

    @property
    def advice(self) -> set[str]:
        """The advice that users have had about their steps, so that each is given once; `program.hints` adds to it."""
        # Not a cached_property: pyright does not take one for the property that a protocol asks for.
        said: set[str] = self.__dict__.setdefault("_advice", set())
        return said

    # Steps.

    def replica_context(self, replicas: int, batch_rows: frozenset[int] = frozenset()) -> ReplicaContextLike:
        """Returns a new replica context for a step on `replicas` replicas, each with so many rows of its arguments.

        Raises:
            ContextError: There are no replicas.
        """
        del batch_rows
        raise ContextError(f"{self!r} runs no steps on {replicas} replicas.")

    def compile_cut(
        self,
        step: Callable[..., PyTree],  # (updated, constant, donated arguments, others) -> (new values, results)
        variables: Sequence[VariableLike],  # whose values it takes first: the updated ones, then the others
        written: Sequence[VariableLike],  # whose new values it returns
        replicas: int,
    ) -> CompiledStep:
        """Compiles a program's pure function with the update on its own; asked for where `cuts_steps` is true."""
        del step, variables, written, replicas
        raise ContextError(f"{self!r} compiles a step as one program.")

    def counted(self, trains: bool, weight: float) -> contextlib.AbstractContextManager[None]:
        """Returns what a program that assigns its variables runs in, in whatever scope; no other thread's runs then."""
        # `trains` says whether any of them is trainable; `weight` is the rows of its batch in Keras's loops, else 1.
        del trains, weight
        return contextlib.nullcontext()

    # Variables.

    def optimizer_sharding(self, variable: VariableLike) -> Sharding | None:
        """Returns where a variable of an optimizer lives while a step updates it: by default where it always lives."""
        return self.placement.variable_sharding(variable)

    def adopt(self, variable: VariableLike) -> None:
        """Notes each Keras variable that is made in the scope, before it gets its first value."""

    def creates(self, variable: VariableLike, initializer: Callable[..., jax.Array]) -> bool:
        """Learns how the first value of a new Keras variable is computed; returns whether it sees to that itself."""
        # By `initializer(shape, dtype=dtype)`.
        del variable, initializer
        return False

    # Keras's loops.

    def scope(self) -> contextlib.AbstractContextManager[StrategyBase]:
        """Makes it the current strategy."""
        return contextlib.nullcontext(self)

    def distribute_dataset(self, dataset: PyTree, options: Any = None, *, batch_size: int | None = None) -> PyTree:
        """Distributes a dataset of global batches."""
        raise ContextError(f"{self!r} distributes no dataset: {dataset!r}, {options!r}, {batch_size!r}.")

    def distribute_datasets_from_function(self, dataset_fn: Callable[..., PyTree], options: Any = None) -> PyTree:
        """Distributes the dataset that a `DatasetCreator` makes."""
        raise ContextError(f"{self!r} distributes no dataset: {dataset_fn!r}, {options!r}.")

    def check_layouts(self, variables: Sequence[VariableLike]) -> None:
        """Checks that a model's variables have the layouts that were asked for; `fit` calls it.

        Raises:
            LayoutError: They have not.
        """
        del variables

    def keras_loops(self, model: keras.Model) -> KerasLoopsLike | None:
        """Returns what runs `fit` and the like for a model, by these names; None leaves them to Keras's loops."""
        del model
        return None

    def own_values(self) -> contextlib.AbstractContextManager[None]:
        """Lets Python read the values that this process has in a `with` block, where they differ between processes."""
        return contextlib.nullcontext()

    def around_loop(
        self, model: keras.Model, name: str, given: inspect.BoundArguments
    ) -> contextlib.AbstractContextManager[None] | None:
        """Returns what a loop of Keras runs in, which may change its arguments; None for nothing."""
        del model, name, given
        return None


class _NoStrategy(StrategyBase):
    @property
    def advice(self) -> set[str]:  # A new one: what was said is said again.
        return set()

    def __repr__(self) -> str:
        return "no strategy"


NULL_STRATEGY: StrategyBase = _NoStrategy()


def or_null(strategy: StrategyBase | None) -> StrategyBase:
    """Returns the strategy, or the null object where none is current."""
    return NULL_STRATEGY if strategy is None else strategy


def owner_of(variable: VariableLike) -> StrategyBase | None:
    """Returns the strategy in whose scope a variable was created, or None."""
    reference = getattr(variable, "_replicax_strategy", None)  # Keras's have a weak one.
    return reference() if reference is not None else getattr(variable, "strategy", None)
