"""The contract between programs (and variables, Keras's loops, datasets) and their host: a strategy, or none.

`strategies.Strategy` fills in `Host`, and `strategies.Placement` fills in
`placement_like.PlacementLike`. `NO_HOST` answers where no
strategy is current: one replica, on whatever device JAX chooses, and values that stay where they are. So a program asks
its host and never whether there is one.

For example, a training step under a `MirroredStrategy` on two devices:

    host = host_of(context.current().strategy)   # the strategy
    host.num_replicas_in_sync                    # 2
    host.placement.program_sharding(weight, 2)   # replicated over both devices
    host.placement.program_sharding(counter, 2)  # a row on each device, if it has one component for each replica
    host.replica_context(2, frozenset({16}))     # what `rx.get_replica_context()` returns in the step
    host.cuts_steps                              # False: the replicas' program updates the variables too

Without a strategy `host_of(None)` answers the same questions: one replica, and None (leave it where it is).
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Protocol

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, Sharding

from replicax.contracts.placement import FirstValueLike, PlacementLike, WorldsLike
from replicax.contracts.reduce_op import ReduceOp
from replicax.contracts.variable_access import TreeLeaf, VariableLike, array_of, set_array
from replicax.errors import ContextError
from replicax.runtime.devices import default_devices
from replicax.typing import PyTree

#: Where the random numbers of a replica function come from: each replica draws its own, or each row has its own.
PER_REPLICA, PER_ROW = "per_replica", "per_row"


class RunningReplica(Protocol):
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


class Host(Protocol):
    """Runs programs: a strategy, or `NO_HOST`."""

    @property
    def devices(self) -> tuple[jax.Device, ...]:
        """The devices, one for each replica."""

    @property
    def num_replicas_in_sync(self) -> int:
        """Number of replicas whose gradients are combined in one step."""

    @property
    def placement(self) -> PlacementLike:
        """Where values live."""

    @property
    def advice(self) -> set[str]:
        """The advice that users have had about their steps, so that each is given once; `program.advice` adds to it."""

    @property
    def cuts_steps(self) -> bool:
        """Whether the replicas run no further than to the gradients: `compile_cut` compiles steps."""

    @property
    def is_asynchronous(self) -> bool:
        """Whether workers run steps on their own, on variables that live on servers."""

    @property
    def is_client(self) -> bool:
        """Whether it computes nothing in this process: work is sent to workers elsewhere."""

    @property
    def counts_steps(self) -> bool:
        """Whether each program that assigns its variables is counted: `counted`."""

    @property
    def random_numbers(self) -> str:
        """Whether random numbers belong to rows (`PER_ROW`) or each replica draws its own (`PER_REPLICA`)."""

    @property
    def sum_together(self) -> Callable[[list[jax.Array]], list[jax.Array]] | None:
        """Sums small values over the replicas as one, inside `shard_map`; None: each is summed by itself."""

    def counted(self, trains: bool, weight: float) -> contextlib.AbstractContextManager[None]:
        """Returns what a program that assigns its variables runs in, in whatever scope; no other thread's runs then."""
        # `trains`: whether any of them is trainable. `weight`: the rows of its batch in Keras's loops, and 1 elsewhere.

    def replica_context(self, replicas: int, batch_rows: frozenset[int] = ...) -> RunningReplica:
        """Returns a new replica context for a step on `replicas` replicas, each with so many rows of its arguments."""

    def compile_cut(
        self,
        step: Callable[..., PyTree],  # (updated, constant, donated and other arguments) -> (new values, results)
        variables: Sequence[VariableLike],  # whose values it takes first: the updated ones, then the others
        written: Sequence[VariableLike],  # whose new values it returns
        replicas: int,
    ) -> CompiledStep:
        """Compiles a program's pure function with the update on its own; asked for where `cuts_steps` is true."""

    def optimizer_sharding(self, variable: VariableLike) -> Sharding | None:
        """Returns where a variable of an optimizer lives while a step updates it; None leaves it where it is."""

    def adopt(self, variable: VariableLike) -> None:
        """Notes each Keras variable that is made in the scope, before it gets its first value."""

    def creates(self, variable: VariableLike, initializer: Callable[..., jax.Array]) -> bool:
        """Takes over a new Keras variable's first value, `initializer(shape, dtype=dtype)`; returns whether it does."""


class NoPlacement:
    """The placement of who places nothing: values stay where they are, and programs leave it to JAX."""

    replicas = 1
    spans_processes = False
    shards_variables = False
    worlds: WorldsLike | None = None
    workers = ("process 0",)
    is_chief = True

    @property
    def home(self) -> Sharding:
        return self.sharding(stacked=False)

    def mesh_for(self, replicas: int) -> Mesh:
        raise ContextError(f"The default strategy has no mesh of {replicas} replicas.")

    def sharding(self, stacked: bool, replicas: int | None = None) -> NamedSharding:
        del stacked
        raise ContextError(f"The default strategy has no mesh of {replicas or self.replicas} replicas.")

    def variable_sharding(self, variable: VariableLike) -> Sharding | None:
        del variable
        return None

    def leaf_sharding(self, leaf: TreeLeaf) -> Sharding | None:
        del leaf
        return None

    def program_sharding(self, variable: VariableLike, replicas: int) -> Sharding | None:
        del variable, replicas
        return None

    def replica_sharding(self, variable: VariableLike, replicas: int) -> Sharding | None:
        del variable, replicas
        return None

    def first_value(self, function: Callable[[], jax.Array]) -> FirstValueLike | None:
        del function
        return None

    def create(self, variable: VariableLike, value: FirstValueLike) -> None:
        raise ContextError(f"{type(self).__name__} computes no first values: {variable!r}, {value!r}.")

    def initialize(self, variable: VariableLike, value: jax.typing.ArrayLike) -> None:
        set_array(variable, jnp.copy(value))

    def load(
        self, variables: Sequence[VariableLike], replicas: int, homes: Sequence[Sharding | None] | None = None
    ) -> list[jax.Array]:
        del replicas, homes
        return [array_of(variable) for variable in variables]

    def stored(self, variables: Sequence[VariableLike], values: Sequence[jax.Array]) -> list[jax.Array]:
        del variables
        return list(values)

    def moved(self, values: Sequence[jax.Array], shardings: Sequence[Sharding]) -> list[jax.Array]:
        return [jax.device_put(value, sharding) for value, sharding in zip(values, shardings, strict=True)]

    def follow(self, variables: Sequence[VariableLike]) -> None:
        """Does nothing: there is one world."""

    def make_alike(self, variables: Sequence[VariableLike]) -> None:
        """Does nothing: there is one process."""

    def place(self, value: jax.typing.ArrayLike, stacked: bool = False, replicas: int | None = None) -> jax.Array:
        del stacked, replicas
        return jnp.array(value, copy=True)

    def agreed(
        self, values: Sequence[jax.typing.ArrayLike], names: Sequence[str], what: str = ""
    ) -> Sequence[jax.typing.ArrayLike]:
        del names, what
        return values

    def shrunk(self, array: jax.Array, replicas: int) -> jax.Array:
        del replicas
        return array

    def takes_part(self, replicas: int) -> bool:
        del replicas
        return True

    def result_sharding(self, replicas: int) -> Sharding | None:
        del replicas
        return None

    def spread(self, values: Sequence[jax.Array]) -> Sequence[jax.Array]:
        return values

    def rejoined(self, tree: PyTree, replicas: int) -> PyTree:
        del replicas
        return tree


class HostDefaults:
    """The defaults of a host: one program for a whole step, and variables stay where they are put."""

    cuts_steps = False
    is_asynchronous = False
    is_client = False
    counts_steps = False
    random_numbers = PER_REPLICA
    sum_together: Callable[[list[jax.Array]], list[jax.Array]] | None = None
    placement: PlacementLike

    @property
    def advice(self) -> set[str]:
        """The advice that users have had about their steps, so that each is given once."""
        return self._advice

    @functools.cached_property
    def _advice(self) -> set[str]:
        return set()

    def replica_context(self, replicas: int, batch_rows: frozenset[int] = frozenset()) -> RunningReplica:
        """Refuses: nothing runs on replicas here."""
        del batch_rows
        raise ContextError(f"{self!r} runs no steps on {replicas} replicas.")

    def compile_cut(
        self,
        step: Callable[..., PyTree],
        variables: Sequence[VariableLike],
        written: Sequence[VariableLike],
        replicas: int,
    ) -> CompiledStep:
        """Refuses: `cuts_steps` is false."""
        del step, variables, written, replicas
        raise ContextError(f"{self!r} compiles a step as one program.")

    def optimizer_sharding(self, variable: VariableLike) -> Sharding | None:
        """Returns where a variable of an optimizer lives while a step updates it: where it always lives."""
        return self.placement.variable_sharding(variable)

    def adopt(self, variable: VariableLike) -> None:
        """Notes each Keras variable that is made in the scope, before it gets its first value."""

    def creates(self, variable: VariableLike, initializer: Callable[..., jax.Array]) -> bool:
        """Leaves it to Keras to compute the first value of a variable."""
        del variable, initializer
        return False

    def own_values(self) -> contextlib.AbstractContextManager[None]:
        """Lets Python read the values that this process has in a `with` block, where they differ between processes."""
        return contextlib.nullcontext()

    def around_loop(
        self, model: object, name: str, given: inspect.BoundArguments
    ) -> contextlib.AbstractContextManager[None] | None:
        """Returns what a loop of Keras runs in, which may change its arguments; None for nothing."""
        del model, name, given
        return None

    def counted(self, trains: bool, weight: float) -> contextlib.AbstractContextManager[None]:
        """Returns a context that does nothing: `counts_steps` is false."""
        del trains, weight
        return contextlib.nullcontext()


class NoHost(HostDefaults):
    """Runs programs where no strategy is current: one replica, and nothing is placed."""

    num_replicas_in_sync = 1

    def __init__(self) -> None:
        self.placement = NoPlacement()

    @property
    def devices(self) -> tuple[jax.Device, ...]:
        return tuple(default_devices()[:1])

    @property
    def advice(self) -> set[str]:
        return set()  # Nobody remembers what was said: it is said again.

    def __repr__(self) -> str:
        return "no strategy"


NO_HOST: Host = NoHost()


def host_of(strategy: Host | None) -> Host:
    """Returns who runs programs while `strategy` is current; None means that none is."""
    return NO_HOST if strategy is None else strategy
