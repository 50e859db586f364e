"""The largest batch whose training step fits into the memory of each device."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

import replicax.context as context
from replicax.checks import checked_int, is_int, is_real
from replicax.contracts.variable_access import VariableLike, array_of
from replicax.errors import ArgumentError, BatchError
from replicax.keras.models import strategy_of, training_program
from replicax.program.function import Function, function
from replicax.tools.tuning.restoring import check_model, check_synchronous
from replicax.typing import PyTree

if TYPE_CHECKING:
    import keras

_NAME = "find_batch_size"
_PREFETCHED = 2  # batches that wait on the devices, as `rx.InputOptions` has it


class BatchSize(int):
    """A global batch size: an int that knows what it needs.

    Attributes:
        bytes: Bytes that a step with it needs on each device.
        limit: Bytes that a step may need.
        tried: The bytes of each batch size that was tried.

    Example:
        >>> size = BatchSize(64, limit=1000, tried={32: 500, 64: 900, 72: 1010})
        >>> size, size.bytes
        (64, 900)
    """

    limit: int
    tried: Mapping[int, int]

    def __new__(cls, size: int, limit: int, tried: Mapping[int, int]) -> BatchSize:
        made = super().__new__(cls, size)
        made.limit, made.tried = limit, dict(sorted(tried.items()))
        return made

    def __getnewargs__(self) -> tuple[int, int, Mapping[int, int]]:  # type: ignore[override]  # as `__new__` has them
        return int(self), self.limit, self.tried

    @property
    def bytes(self) -> int:
        """Bytes that a step with this batch size needs on each device."""
        return self.tried[int(self)]


class _Compiled(NamedTuple):
    """A compiled step."""

    step: jax.stages.Compiled
    variables: list[VariableLike]  # on the devices already
    batch_bytes: int  # on one device


def find_batch_size(
    train: keras.Model | Callable[..., PyTree],
    batch: PyTree,
    *,
    strategy: Any = None,
    memory: int | None = None,
    reserve: float = 0.05,
    multiple_of: int | None = None,
    max_batch_size: int = 2**17,
) -> BatchSize:
    """Returns the largest global batch size whose training step fits into the memory of each device.

    Steps of several sizes are compiled, and XLA says what they need: variables, gradients, activations, the batch and
    the two that are prefetched. None is run, so no value changes, and nothing runs out of memory. (Variables that the
    first step makes, such as an optimizer's, exist afterwards, with their first values.) Each size is compiled once;
    the search guesses by what two sizes need, and takes four or five.

    Args:
        train: A compiled Keras model that was made in a strategy's scope; or the step of a custom loop, a function of a
            batch.
        batch: A batch of any size, as the training has it: arrays with rows first. Rows are repeated for others.
        strategy: For a custom loop the strategy whose `distribute_dataset` makes its batches; by default the current
            one, and without one the step gets the arrays.
        memory: Bytes of each device that a step may need. By default what the device has left, the variables of the
            step counted as its own; the CPU does not say so, and needs a number.
        reserve: The part of a device's memory to leave free where `memory` is not given: for what other programs need,
            and since memory gets fragmented.
        multiple_of: What the batch size is divisible by; by default the number of replicas.
        max_batch_size: The largest size to try.

    Raises:
        ArgumentError: An argument does not fit; `memory` is missing on a device that does not say how much it has.
        BatchError: Not even the smallest batch fits; or `batch` has no rows.
        ContextError: The strategy does not train synchronously in this process.

    Example:
        >>> import jax.numpy as jnp, numpy as np
        >>> from replicax import Variable
        >>> weight = Variable(jnp.ones((256, 256)))
        >>> def step(x):
        ...     return jnp.sum(jnp.tanh(x @ weight.value) ** 2)
        >>> size = find_batch_size(step, np.ones((1, 256), "float32"), memory=2**20)
        >>> size.bytes <= 2**20 < size.tried[size + 1]
        True
    """
    is_model = hasattr(train, "fit") and hasattr(train, "compile")
    host = strategy_of(train) if is_model else strategy or context.current().strategy
    if is_model:
        check_model(train, host)
    if not is_model and not callable(train):
        raise ArgumentError(f"`train` is a compiled Keras model or the function of a step, got {train!r:.100}.")
    check_synchronous(host, _NAME)
    replicas = 1 if host is None else host.num_replicas_in_sync
    unit = replicas if multiple_of is None else checked_int("multiple_of", multiple_of, least=1)
    most = checked_int("max_batch_size", max_batch_size, least=unit) // unit
    _check_rows(batch)
    compiled = _of_model(train, replicas) if is_model else _of_step(train, host, replicas)
    device = jax.local_devices()[0] if host is None else _local(host.devices)
    limit = Limit(device, memory, reserve)
    needs: dict[int, int] = {}

    def need(units: int) -> int:
        size = units * unit
        if size not in needs:
            step = compiled(_with_rows(batch, size))
            needs[size] = _bytes_of(step.step) + _PREFETCHED * step.batch_bytes
            limit.count_own(step.variables)
        return needs[size]

    found = largest(need, lambda: limit.bytes, most)
    if found == 0:
        raise BatchError(
            f"Not even a batch of {unit} rows fits: its step needs {needs[unit]:,} bytes on each device, and there are "
            f"{limit.bytes:,}. Shard the variables (rx.FullyShardedStrategy, rx.LayoutStrategy), or compute "
            "activations again (rx.remat)."
        )
    return BatchSize(found * unit, limit.bytes, needs)


def largest(need: Callable[[int], int], limit: Callable[[], int], most: int) -> int:
    """Returns the largest number, at most `most`, whose need is within the limit; 0 if there is none.

    Example:
        >>> asked = []
        >>> largest(lambda n: asked.append(n) or 100 + 7 * n, lambda: 1000, 10_000)
        128
        >>> len(set(asked))
        4
    """
    if need(1) > limit():
        return 0
    fits, above, known = 1, most + 1, [1]
    while above - fits > 1:
        guess = 2 * fits if len(known) == 1 else _guess(known[-2:], need, limit())
        # A guess that is far off is no reason to go on by ones.
        halfway = (fits + min(above, 4 * fits)) // 2
        number = halfway if len(known) > 4 and not fits < guess < above - 1 and above - fits > 4 else guess
        number = min(max(number, fits + 1), above - 1)
        known.append(number)
        if need(number) <= limit():
            fits = number
        else:
            above = number
    return fits


def _guess(known: list[int], need: Callable[[int], int], limit: int) -> int:
    """Returns which number is on the line through the needs of two others where it meets the limit."""
    one, other = known
    slope = (need(other) - need(one)) / (other - one)
    return other + math.floor((limit - need(other)) / slope) if slope > 0 else 2 * max(known)


class Limit:
    """How many bytes a step may need on a device."""

    def __init__(self, device: jax.Device, memory: int | None, reserve: float):
        if not is_real(reserve) or not 0 <= reserve < 1:
            raise ArgumentError(f"`reserve` is a part of the memory, at least 0 and below 1, got {reserve!r:.100}.")
        if memory is not None and (not is_int(memory) or memory < 1):
            raise ArgumentError(f"`memory` is a number of bytes of each device, an int, got {memory!r:.100}.")
        stats = device.memory_stats() if memory is None else None
        if memory is None and not (stats and "bytes_limit" in stats):
            raise ArgumentError(
                f"{device.platform}:{device.id} does not say how much memory it has: give the bytes that a step may "
                "need on it, such as memory=8 * 2**30."
            )
        self._device, self._reserve = device, reserve
        self._stats: Mapping[str, int] = stats or {}
        self._given = memory
        self._own = 0

    def count_own(self, variables: list[VariableLike]) -> None:
        """Counts the bytes of variables that are on the device: the step's needs contain them."""
        shards = (shard for variable in variables for shard in getattr(array_of(variable), "addressable_shards", ()))
        self._own = sum(shard.data.nbytes for shard in shards if shard.device == self._device)

    @property
    def bytes(self) -> int:
        if self._given is not None:
            return int(self._given)
        others = max(self._stats.get("bytes_in_use", 0) - self._own, 0)
        return int(self._stats["bytes_limit"] * (1 - self._reserve)) - others


def _of_model(model: Any, replicas: int) -> Callable[[PyTree], _Compiled]:
    def compiled(batch: PyTree) -> _Compiled:
        program, arrays = training_program(model, batch)
        lowered = program.lower(arrays)
        variables = [*model.variables, *model.optimizer.variables, *model.metrics_variables]
        unique = list({id(variable): variable for variable in variables}.values())
        return _Compiled(lowered.compile(), unique, _nbytes(batch) // replicas)

    return compiled


def _of_step(step: Callable[..., PyTree], host: Any, replicas: int) -> Callable[[PyTree], _Compiled]:
    # A function of its own, so that the user's does not keep programs that are never run.
    own = function(step.python_function if isinstance(step, Function) else step)

    def compiled(batch: PyTree) -> _Compiled:
        placed = batch if host is None else next(iter(host.distribute_dataset([batch])))
        variables = own.build(placed)
        return _Compiled(own.lower(placed).compile(), variables, _nbytes(batch) // replicas)

    return compiled


def _bytes_of(compiled: jax.stages.Compiled) -> int:
    """Returns what a program needs on each device: what it is given, what it returns elsewhere, and in between."""
    stats = compiled.memory_analysis()
    if stats is None:
        raise ArgumentError("The backend does not say how much memory its programs need.")
    kept = stats.argument_size_in_bytes + stats.output_size_in_bytes - stats.alias_size_in_bytes
    return int(kept + stats.temp_size_in_bytes)


def _local(devices: tuple[jax.Device, ...]) -> jax.Device:
    own = [device for device in devices if device.process_index == jax.process_index()]
    return own[0] if own else devices[0]


def _check_rows(batch: PyTree) -> None:
    rows = {len(leaf) if np.ndim(leaf) else 0 for leaf in jax.tree.leaves(batch)}
    if len(rows) != 1 or 0 in rows:
        raise BatchError(f"`batch` has arrays with equally many rows, at least one, got {sorted(rows)} rows.")


def _with_rows(batch: PyTree, rows: int) -> PyTree:
    def repeated(leaf: PyTree) -> np.ndarray:
        leaf = np.asarray(leaf)
        return np.take(leaf, np.arange(rows) % len(leaf), axis=0)

    return jax.tree.map(repeated, batch)


def _nbytes(batch: PyTree) -> int:
    return sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(batch))
