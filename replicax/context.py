"""The current strategy, replica and program: the only ambient state of the library.

A `Context` is immutable; entering one replaces the current one and leaving puts the old one back. It lives in a
`contextvars.ContextVar`, so each thread (and each asyncio task) has its own, and a new thread starts outside every
strategy.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from fractions import Fraction
from typing import Any, Protocol, TypedDict, Unpack

import jax

from replicax.checks import checked
from replicax.contracts.strategy import ReplicaContextLike, StrategyBase
from replicax.contracts.variable_access import VariableLike


class RowsOwner(Protocol):
    """An owner of rows that are updated when the gradients of a loss are known: a table."""

    last_hook: jax.Array | None  # the hook's value when gradients outside of programs were last known

    @property
    def hook(self) -> VariableLike:
        """The variable of which an optimizer gets a gradient, too."""


class StateFrame(Protocol):
    """Where the values of variables live while a function is being traced."""

    saw_new: bool  # whether variables were created meanwhile
    is_of_loss: bool  # whether the function is being differentiated

    def note_made(self, variable: VariableLike) -> None:
        """Notes each variable that is made with a value."""

    def read(self, variable: VariableLike) -> jax.Array:
        """Returns the current value of `variable` inside the trace."""

    def note_read(self, variable: VariableLike, value: jax.Array) -> None:
        """Notes each value that a reader was given."""

    def write(self, variable: VariableLike, value: jax.Array) -> jax.Array:
        """Makes `value` the current value of `variable` inside the trace and returns what was stored."""

    def write_in_layer(self, variable: VariableLike, value: jax.Array) -> None:
        """The same for a layer's forward pass: what a loss trains keeps the value until the loss is known."""

    def holds(self, variable: VariableLike) -> bool:
        """Returns whether `variable` was assigned inside the trace."""

    def is_here(self) -> bool:
        """Returns whether the running code is that of the frame's function, and no function that JAX traces inside."""

    def forget(self, variable: VariableLike) -> None:
        """Drops what was assigned to `variable`: it has been given a value that outlives the trace."""

    def after_gradients(self, owner: RowsOwner, make: Callable[[], Callable[[float], None]]) -> object:
        """Has something done when the gradients of a loss are known, once for each owner."""

    def update_rows(self, factor: float, refused: str | None, is_checked: bool) -> None:
        """Does it, unless it is refused; the gradients are multiplied by the factor."""

    def note_changed(self, module: object) -> None:
        """Notes each module of flax before an attribute of it changes."""

    def knows(self, module: object) -> bool:
        """Returns whether a module of flax was noted: it is one from outside of the function."""

    def note_captured(self) -> None:
        """Notes that a step uses a per-replica value that it has captured."""


class ReplicaStateFrame(StateFrame, Protocol):
    """The same inside a replica: where `manual_replicas` is set there is no other."""

    def defers(self, variable: VariableLike) -> bool:
        """Returns whether a variable is an accumulator: the replicas' values are combined when their function ends."""

    def defer(self, variable: VariableLike, aggregate: Callable[[jax.Array], jax.Array]) -> int:
        """Makes a variable an accumulator until the replica function ends; returns its position among them."""

    def number(self, variable: VariableLike) -> int:
        """Returns the position of an accumulator."""

    def postpones(self, variable: VariableLike, how: enum.Enum) -> bool:
        """Returns whether what replicas assign to a variable is combined later, by a `VariableAggregation`."""


class NamedVariables(Protocol):
    """Variables that a function finds again which makes them each time it is called."""

    def variable(self, name: str, new: Callable[[], object]) -> object:
        """Returns the variable of a name: what `new` returns, or what it returned in an earlier call."""


class Reader(Protocol):
    """The reader of variables of which other processes hold shards, and send them."""

    def note_read(self, variable: VariableLike) -> None:
        """Notes each variable whose shards are needed next."""


@dataclasses.dataclass(frozen=True)
class Context:
    """The surroundings of the running code."""

    strategy: StrategyBase | None = None  # None outside every scope (the default strategy)
    replica: ReplicaContextLike | None = None  # None in cross-replica context
    frame: StateFrame | None = None  # None outside of traced functions
    # Number of replicas over which the code runs inside `shard_map`; None outside. It is set in replica context and in
    # the cross-replica functions that run in its middle (`merge_call`, `update`).
    manual_replicas: int | None = None
    cross_replica: bool = False  # whether the default strategy runs a cross-replica function; elsewhere it has none
    default_mesh: object | None = None  # the `dtensor.Mesh` that layouts made without one are for
    opened_by_set_strategy: contextlib.ExitStack | None = None  # to close again, if `rx.set_strategy` made `strategy`
    # The scope object that made `strategy` current: it is kept as long as that is so, also where nobody else keeps it
    # (`strategy.scope().__enter__()`).
    scope: object | None = None
    makes_dataset: bool = False  # whether a worker of a `ParameterServerStrategy` is making its dataset
    named_variables: NamedVariables | None = None  # where variables that have been made before are found again
    reader: Reader | None = None  # of variables with shards in other processes; None where all processes read alike
    part_of_rows: Fraction = Fraction(1)  # of the replica's rows, for the running code: less than 1 in a micro-batch
    differentiates_apart: bool = False  # whether a loss is differentiated in which weights count as each replica's own
    in_custom_rule: bool = False  # whether a rule of `jax.custom_vjp` runs: gradients in it are parts of others
    row_draws: object | None = None  # the `RowDraws` that decides about random numbers; None: each replica by itself
    worker_index: int | None = None  # of the worker that calls a user's function; None on the coordinator
    recorder: object | None = None  # of the scheduled function that is being traced for workers
    reads_own_values: bool = False  # whether this island's own values may be read
    conversion: object | None = None  # of a preset's weights, which are read in pieces
    checked_weights: object | None = None  # the reading of a file whose values are not assigned, but checked
    planner: Callable[[Any, Sequence[jax.Array]], None] | None = None  # called after each call of a program


class Changes(TypedDict, total=False):
    """The attributes of `Context` that `entered` may change."""

    strategy: StrategyBase | None
    replica: ReplicaContextLike | None
    frame: StateFrame | None
    manual_replicas: int | None
    cross_replica: bool
    default_mesh: object | None
    opened_by_set_strategy: contextlib.ExitStack | None
    scope: object | None
    makes_dataset: bool
    named_variables: NamedVariables | None
    reader: Reader | None
    part_of_rows: Fraction
    differentiates_apart: bool
    in_custom_rule: bool
    row_draws: object | None
    worker_index: int | None
    recorder: object | None
    reads_own_values: bool
    conversion: object | None
    checked_weights: object | None
    planner: Callable[[Any, Sequence[jax.Array]], None] | None


_current: ContextVar[Context] = ContextVar("replicax_context", default=Context())
_eager: ContextVar[bool] = ContextVar("replicax_run_eagerly", default=False)


def current() -> Context:
    """Returns the context of the running code."""
    return _current.get()


@contextlib.contextmanager
def entered(**changes: Unpack[Changes]) -> Iterator[Context]:
    """Makes the current context with `changes` current inside a `with` block."""
    context = dataclasses.replace(_current.get(), **changes)
    token = _current.set(context)
    try:
        yield context
    finally:
        _current.reset(token)


def replace(context: Context) -> None:
    """Makes `context` current until further notice (for `rx.set_strategy`, which has no `with` block)."""
    _current.set(context)


@checked
def run_eagerly(enable: bool = True) -> None:
    """Makes `rx.function` and `strategy.run` execute operation by operation instead of compiling, for debugging.

    `print` then shows each replica's values, and a debugger can stop at any line. It is slow. In an `rx.function`
    outside of `run` the arrays are ordinary ones. Inside `run` an array still stands for the values of all replicas,
    which `if`, `float()` and NumPy cannot use as one number (`TracedValueError`).
    The switch holds for the current thread.

    Example:
        >>> rx.config.run_eagerly(True)
        >>> rx.function(lambda x: x + 1)(1)
        2
        >>> rx.config.run_eagerly(False)
    """
    _eager.set(bool(enable))


@contextlib.contextmanager
def traced() -> Iterator[None]:
    """Lets what runs in a `with` block be traced, also where `run_eagerly` is on."""
    token = _eager.set(False)
    try:
        yield
    finally:
        _eager.reset(token)


def runs_eagerly() -> bool:
    """Returns whether `run_eagerly` is on.

    Example:
        >>> rx.config.runs_eagerly()
        False
    """
    return _eager.get()
