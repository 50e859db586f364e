"""Collects the record of a run in the process that makes it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from replicax.compat.jax_tracing import is_tracing
from replicax.contracts.variable_access import (
    VariableLike,
    aggregation_of,
    array_of,
    dtype_of,
    free_name,
    has_array,
    is_per_replica_variable,
    name_of,
    stored_form_of,
)
from replicax.tensorflow.proof.recording import Finished
from replicax.tools.certifying.recording import Event, Value
from replicax.typing import PyTree
from replicax.values import is_per_replica
from replicax.variables import Variable

#: The causes that make a call a training step.
_OF_TRAINING = {"loss", "gradient", "applied gradient"}
#: A call between two steps.
_REDUCE = " of reduce"
#: Changes nothing about the arrays that a step begins with.
Perturbation = Callable[["Recorder", PyTree], PyTree]


class Recorder:
    """Collects what happens in each step.

    Args:
        steps: After how many steps the script ends, with `Finished`.
        worker: The number of this process, from 0.
        wait: Waits until devices have computed, and callbacks have run.
        perturb: Changes the variables before a step, and returns its changed arguments; None: as the script has them.
    """

    def __init__(self, steps: int, worker: int, wait: Callable[[], None], perturb: Perturbation | None = None):
        self._steps, self._worker, self._wait, self._perturb = steps, worker, wait, perturb
        self._lock = threading.Lock()
        self._pending: dict[tuple[str, str, int], Event] = {}
        self._seen: Counter[tuple[str, str, str]] = Counter()  # by kind, name and part, within a step
        self._kept: dict[tuple[int, str, str, int], Event] = {}
        self._training: set[int] = set()  # what has made steps, by identity
        self._variables: dict[str, tuple[VariableLike, str]] = {}  # by name: a variable, and the line that made it
        self._names: dict[int, str] = {}
        self._kinds: dict[int, str] = {}
        self._before: dict[str, np.ndarray] = {}
        self._given: dict[tuple[str, tuple[int, ...]], np.ndarray | None] = {}  # None: several
        self._caller: int | None = None  # whose call is being made, by identity
        self._trains: set[int] = set()  # whose programs make what a training step makes
        self.steps_made = 0
        #: Objects that have variables, such as optimizers, and the kind of these.
        self.owners: list[tuple[list[Any], str]] = []

    # The things there are to record.

    def variable(self, variable: VariableLike, line: str) -> None:
        """Takes a new variable, to read it after each step."""
        if id(variable) not in self._names:
            name = free_name(name_of(variable), self._variables)
            self._names[id(variable)] = name
            self._variables[name] = (variable, line)

    def name(self, variable: VariableLike) -> str:
        """Returns the name of a variable, no other one's."""
        self.variable(variable, "")
        return self._names[id(variable)]

    def variables(self) -> Iterator[tuple[str, VariableLike, str]]:
        """Yields the variables that have a value, with name and line."""
        for name, (variable, line) in list(self._variables.items()):
            if has_array(variable) and isinstance(array_of(variable), jax.Array):
                yield name, variable, line

    def add(self, kind: str, name: str, part: str, value: Value, combine: str = "one", line: str = "") -> None:
        """Takes a part of an event of the step that is being made, or of the next one."""
        with self._lock:
            number = self._seen[kind, name, part]
            self._seen[kind, name, part] += 1
            event = self._pending.get((kind, name, number))
            if event is None:
                event = Event(0, kind, name, number, line, combine, {})
            self._pending[kind, name, number] = event._replace(parts={**event.parts, part: value})

    def traces(self, kind: str) -> None:
        """Notes that a program that is being traced will make events of a kind, in some of the processes."""
        if kind in _OF_TRAINING and self._caller is not None:
            self._trains.add(self._caller)

    # Calls.

    def around(self, call: Callable, of: str = "") -> Callable:
        """Returns a function that does what `call` does, and ends a step where it is not inside of another one.

        Its result is called a result `of` something. That of a reduction belongs to the step before.
        """

        def called(*args: PyTree, **kwargs: PyTree) -> PyTree:
            if self._caller is not None or is_tracing():
                return call(*args, **kwargs)
            made_by = id(args[0])
            if self.steps_made >= self._steps and made_by in self._training:
                raise Finished
            if self._perturb is not None:
                changed, kwargs = self._perturb(self, (args[1:], kwargs))
                args = (*args[:1], *changed)
            self._begin((args[1:], kwargs))
            self._caller = made_by
            try:
                result = call(*args, **kwargs)
            finally:
                self._caller = None
            self._wait()
            self._end(made_by, result, of)
            return result

        return called

    def _begin(self, given: PyTree) -> None:
        leaves = jax.tree_util.tree_flatten_with_path(given, is_leaf=is_per_replica)[0]
        # Copies: a step may take the memory of what it is given.
        self._given = {}
        for path, leaf in leaves:
            if isinstance(leaf, jax.Array) and (array := _whole(leaf)) is not None:
                key = _place(path), array.shape
                self._given[key] = None if key in self._given else np.array(array)
        self._before = {
            name: host for name, variable, _ in self.variables() if (host := self._host(variable)) is not None
        }

    def _end(self, made_by: int, result: PyTree, of: str) -> None:
        with self._lock:
            pending, self._pending = self._pending, {}
            self._seen.clear()
        is_step = made_by in self._trains or any(event.kind in _OF_TRAINING for event in pending.values())
        if is_step:
            if self.steps_made >= self._steps:
                raise Finished  # another function made this one
            self._training.add(made_by)
            self.steps_made += 1
            self._keep(pending.values())
        elif of == _REDUCE:  # Nobody's step yet.
            self._pending = {key: event for key, event in pending.items() if event.kind == "rows"}
        if self.steps_made:
            self._keep_result(result, of, is_step)
            self._keep_variables(is_step)

    def _keep(self, events: Iterable[Event]) -> None:
        for event in events:
            self._kept[self.steps_made, event.kind, event.name, event.number] = event._replace(step=self.steps_made)

    def _keep_result(self, result: PyTree, of: str, is_step: bool) -> None:
        leaves, _ = jax.tree_util.tree_flatten_with_path(result, is_leaf=is_per_replica)
        for path, leaf in leaves:
            if is_per_replica(leaf) or not isinstance(leaf, jax.Array | np.ndarray | float | int):
                continue  # a value of each replica is nothing that one device has
            array = _whole(leaf)
            if array is not None and jnp.issubdtype(array.dtype, jnp.number):
                name = f"result{of}{jax.tree_util.keystr(path)}"
                number = sum(key[:3] == (self.steps_made, "result", name) for key in self._kept)
                self._keep([Event(0, "result", name, number, "", "one", {f"worker {self._worker}": Value.of(array)})])
                before = self._given.get((_place(path), array.shape)) if _place(path) else None
                if is_step and before is not None and jnp.issubdtype(array.dtype, jnp.floating):
                    self._keep_update(name, before, array, "")

    def _keep_variables(self, is_step: bool) -> None:
        for owned, kind in self.owners:
            self._kinds |= {id(variable): kind for each in owned for variable in each.variables}
        for name, variable, line in self.variables():
            parts = self._parts(variable)
            if parts is None:
                continue
            kind = self._kind(name, variable)
            self._keep([Event(0, kind, name, 0, line, "one", parts)])
            after = self._host(variable)
            if kind == "variable" and after is not None and is_step and name in self._before:
                self._keep_update(name, self._before[name], after, line)

    def _keep_update(self, name: str, before: np.ndarray, after: np.ndarray, line: str) -> None:
        moved = Value.of(after.astype(np.float64) - before.astype(np.float64))._replace(dtype=str(after.dtype))
        self._keep([Event(0, "update", name, 0, line, "one", {f"worker {self._worker}": moved})])

    def _kind(self, name: str, variable: VariableLike) -> str:
        kind = self._kinds.get(id(variable))
        if kind == "optimizer" and name.rpartition("/")[2] == "learning_rate":
            return "rate"
        if kind is not None:
            return kind
        if "seed_generator" in name:
            return "random state"
        if not jnp.issubdtype(jnp.dtype(dtype_of(variable)), jnp.inexact):
            return "optimizer"  # counters
        if getattr(variable, "trainable", True):
            return "variable"
        # An assignment of a layer in a forward pass comes before the loss; when a script assigns its own is not known.
        return "state" if isinstance(variable, Variable) else "statistic"

    def _parts(self, variable: VariableLike) -> dict[str, Value] | None:
        """Returns what each replica has of a variable: one part where that is the same, or cut."""
        array = array_of(variable)
        if not jnp.issubdtype(array.dtype, jnp.number):
            return None
        if array.is_fully_replicated and not is_per_replica_variable(variable):
            copies = [Value.of(np.asarray(shard.data)) for shard in array.addressable_shards]
            if len({copy.digest for copy in copies}) == 1:
                return {f"worker {self._worker}": copies[0]}
            return {f"replica {self._worker}.{index}": copy for index, copy in enumerate(copies)}
        host = self._host(variable)
        return None if host is None else {f"worker {self._worker}": Value.of(host)}

    def _host(self, variable: VariableLike) -> np.ndarray | None:
        form = stored_form_of(variable)
        if form is not None:
            return np.asarray(form.stored(array_of(variable)))
        array = _whole(array_of(variable))
        if array is not None and is_per_replica_variable(variable):
            return np.asarray(array.mean(0) if "mean" in str(aggregation_of(variable)).lower() else array.sum(0))
        return array

    def events(self) -> list[Event]:
        return list(self._kept.values())


def _place(path: Sequence[object]) -> str:
    """Returns where a leaf is in a state, be that an argument or a result: its keys after the last number."""
    numbers = [index for index, key in enumerate(path) if isinstance(key, jax.tree_util.SequenceKey)]
    return jax.tree_util.keystr(tuple(path[numbers[-1] + 1 :] if numbers else path))


def _whole(leaf: object) -> np.ndarray | None:
    """Returns a whole array on the host; None where other processes have parts of it, or for random keys."""
    if isinstance(leaf, jax.Array):
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) or leaf.is_deleted():
            return None
        if not leaf.is_fully_addressable:
            return np.asarray(leaf.addressable_shards[0].data) if leaf.is_fully_replicated else None
    return np.asarray(leaf)
