"""Checks that a strategy keeps the contract of `rx.Strategy`: the numbers under it are those of plain JAX and NumPy.

Each check makes a strategy of its own, runs a small program under it, and compares with the same program without
replicax. So a check names the rule that a strategy breaks.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import replicax.context as context
from replicax.checkpoint import Checkpoint
from replicax.compat.keras_backend import keras_is_loaded
from replicax.errors import ArgumentError, ReplicaDivergenceError, StrategyCheckError
from replicax.program import Function, grad, value_and_grad
from replicax.strategies import ReplicaContext, Strategy, get_replica_context, get_strategy
from replicax.typing import PyTree
from replicax.variables import Variable

_FEATURES, _OUTPUTS, _RATE, _ROWS = 5, 2, 0.05, 24
_SIZES = (24, 23, 1, 24, 6)  # rows of batches: many numbers of replicas divide some of them only


class _Check(NamedTuple):
    rule: str  # a sentence without a full stop
    run: Callable[[Strategy, float], None]


def check_strategy(factory: Callable[[], Strategy], *, rtol: float = 1e-6) -> tuple[str, ...]:
    """Checks that a strategy keeps the contract of `rx.Strategy`, with small programs on the devices that it takes.

    Under a strategy of several workers all of them call this together.

    Args:
        factory: Makes the strategy, without arguments. Each check calls it.
        rtol: How far summed gradients, and what follows from them, may be from exact ones, relative in norm. Give a
            larger one where a strategy compresses gradients.

    Returns:
        The rules that were checked, a sentence each.

    Raises:
        ArgumentError: `factory` is not callable, or does not make an `rx.Strategy`; or `rtol` is not between 0 and 1.
        StrategyCheckError: The strategy breaks rules; the error has all of them, each with what was found.

    Example:
        >>> rules = rx.testing.check_strategy(lambda: rx.MirroredStrategy(["cpu:0", "cpu:1"]))
        >>> rules[0]
        'replicas are numbered from 0'
    """
    if not callable(factory):
        raise ArgumentError(
            f"`factory` is a function that makes a strategy, such as rx.MirroredStrategy, got {factory!r:.100}."
        )
    if isinstance(rtol, bool) or not isinstance(rtol, (int, float)) or not 0 < rtol < 1:
        raise ArgumentError(f"`rtol` is a number between 0 and 1, got {rtol!r:.100}.")
    broken: dict[str, str] = {}
    name = ""
    for check in _CHECKS:
        strategy = factory()
        if not isinstance(strategy, Strategy):
            raise ArgumentError(f"`factory` must make an rx.Strategy, got {strategy!r:.100}.")
        name = repr(strategy)
        try:
            check.run(strategy, rtol)
        except Exception as error:  # Whatever a strategy under test raises is what is reported.
            broken[check.rule] = f"{type(error).__name__}: {error}" if not isinstance(error, _Broken) else str(error)
    if broken:
        raise StrategyCheckError(name, broken)
    return tuple(check.rule for check in _CHECKS)


class _Broken(AssertionError):
    """A number is not what it should be."""


def _same(found: object, expected: object, what: str, rtol: float = 1e-6) -> None:
    """Compares two arrays in norm: relative to the larger of the expected norm and 1e-3."""
    a, b = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    if a.shape != b.shape:
        raise _Broken(f"{what} has the shape {a.shape} and not {b.shape}")
    difference = float(np.linalg.norm(a - b)) / max(float(np.linalg.norm(b)), 1e-3)
    if not difference <= rtol:
        raise _Broken(f"{what} is {_short(a)} and not {_short(b)}: they differ by {difference:.1e}, relative")


def _short(array: np.ndarray) -> str:
    return np.array2string(array.ravel()[:6], precision=6, threshold=6) + ("..." if array.size > 6 else "")


def _true(holds: bool, what: str) -> None:
    if not holds:
        raise _Broken(what)


# The data and the model of all trainings: a linear regression, whose gradients are easily written down.


def _batches(sizes: Sequence[int]) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(sum(sizes), _FEATURES)).astype(np.float32)
    true = np.arange(_FEATURES * _OUTPUTS).reshape(_FEATURES, _OUTPUTS)
    y = (x @ true + rng.normal(size=(len(x), _OUTPUTS))).astype(np.float32)
    ends = np.cumsum(sizes)
    return [(x[end - size : end], y[end - size : end]) for end, size in zip(ends, sizes, strict=True)]


def _loss(params: Sequence[Any], x: Any, y: Any) -> jax.Array:
    """Returns the sum over the rows."""
    weights, offset = params
    return jnp.sum((x @ weights + offset - y) ** 2)


def _trained_alone(sizes: Sequence[int]) -> tuple[jax.Array, jax.Array]:
    """Trains with momentum in plain JAX, each batch as a whole."""
    params = jnp.zeros((_FEATURES, _OUTPUTS)), jnp.zeros(())
    momenta = params
    for x, y in _batches(sizes):
        gradients = jax.grad(lambda p, x, y: _loss(p, x, y) / len(x))(params, x, y)
        momenta = jax.tree.map(lambda m, g: 0.9 * m + g, momenta, gradients)
        params = jax.tree.map(lambda p, m: p - _RATE * m, params, momenta)
    return params


class _Regression:
    """The same training under a strategy, with variables."""

    def __init__(self, strategy: Strategy):
        self.strategy = strategy
        with strategy.scope():
            self.params = [Variable(jnp.zeros((_FEATURES, _OUTPUTS)), name="weights"), Variable(0.0, name="offset")]
            self.momenta = [Variable(jnp.zeros((_FEATURES, _OUTPUTS)), trainable=False), Variable(0.0, trainable=False)]

    def step(self, x: Any, y: Any) -> jax.Array:
        rows = _replica().num_replicas_in_sync * len(x)
        loss, gradients = value_and_grad(lambda: _loss([p.value for p in self.params], x, y) / rows, self.params)()
        for param, momentum, gradient in zip(self.params, self.momenta, gradients, strict=True):
            momentum.assign(0.9 * momentum.value + gradient)
            param.assign_sub(_RATE * momentum.value)
        return loss

    def train(self, sizes: Sequence[int]) -> None:
        for batch in self.strategy.distribute_dataset(_batches(sizes)):
            self.strategy.run(self.step, args=batch)

    def check(self, sizes: Sequence[int], rtol: float) -> None:
        found = np.append(*(param.numpy() for param in self.params))
        _same(found, np.append(*_trained_alone(sizes)), f"what {len(sizes)} steps have made of the parameters", rtol)


def _replica() -> ReplicaContext:
    found: ReplicaContext = get_replica_context()
    return found


def _numbered(strategy: Strategy, sizes: Sequence[int] = _SIZES) -> Iterator[tuple[Any, np.ndarray]]:
    """Yields distributed batches of numbered rows, each with the rows that it should have."""
    given = [np.arange(2 * rows, dtype=np.float32).reshape(rows, 2) for rows in sizes]
    return zip(strategy.distribute_dataset(given), given, strict=True)


# The rules.


def _numbers(strategy: Strategy, rtol: float) -> None:
    replicas = strategy.num_replicas_in_sync
    ids = strategy.run(lambda: jnp.asarray(_replica().replica_id_in_sync_group)[None])
    counts = strategy.run(lambda: jnp.asarray(_replica().num_replicas_in_sync))
    _same(strategy.gather(ids), np.arange(replicas), "`replica_id_in_sync_group`")
    _same(strategy.reduce("mean", counts), replicas, "`num_replicas_in_sync` of the replica context")
    _true(
        len(strategy.devices) == replicas, f"`devices` are {len(strategy.devices)}, and there are {replicas} replicas"
    )


def _current(strategy: Strategy, rtol: float) -> None:
    with strategy.scope():
        variable = Variable(1.0)
        _true(get_strategy() is strategy, "in its scope it is not what `rx.get_strategy()` returns")
    _true(get_strategy() is not strategy, "after its scope it is still the current strategy")
    _true(variable.strategy is strategy, "a variable that is made in its scope does not belong to it")
    inside: list[object] = []
    strategy.run(lambda: inside.append(context.current().replica))
    _true(bool(inside) and inside[-1] is not None, "in `run` there is no replica context")


def _rows(strategy: Strategy, rtol: float) -> None:
    for batch, x in _numbered(strategy):
        _same(strategy.gather(strategy.run(lambda batch: batch * 2, args=(batch,))), 2 * x, f"a batch of {len(x)} rows")


def _reduced(strategy: Strategy, rtol: float) -> None:
    for batch, x in _numbered(strategy):
        rows = len(x)
        values = strategy.run(lambda batch: batch + 1, args=(batch,))
        _same(strategy.reduce("sum", values, axis=0), (x + 1).sum(0), f"the sum over {rows} rows")
        _same(strategy.reduce("mean", values, axis=0), (x + 1).mean(0), f"the mean over {rows} rows")
        _same(
            strategy.reduce("mean", values, axis=(0, 1)), (x + 1).mean(), f"the mean over {rows} rows and both columns"
        )
        means = strategy.run(lambda batch: jnp.mean(batch), args=(batch,))
        parts = len(strategy.local_results(means)) if strategy.num_workers == 1 else 0
        if parts:
            _same(strategy.reduce("mean", means), x.mean(), f"the mean of the means over {rows} rows")


def _counted(strategy: Strategy, rtol: float) -> None:
    replicas = strategy.num_replicas_in_sync
    ones = strategy.run(lambda: jnp.ones(2))
    _same(strategy.reduce("sum", ones), [replicas] * 2, "the sum of a result that is 1 on each replica")
    _same(strategy.gather(ones), np.ones(2 * replicas), "such results, one after the other")
    if strategy.num_workers == 1:
        _true(len(strategy.local_results(ones)) == replicas, "`local_results` has not one for each replica")


def _collectives(strategy: Strategy, rtol: float) -> None:
    ((batch, x),) = _numbered(strategy, (_ROWS,))

    def step(batch: jax.Array) -> PyTree:
        own, replica = jnp.sum(batch, axis=0), _replica()
        return replica.all_reduce("sum", own), replica.all_reduce("mean", own), replica.all_gather(batch)

    total, mean, gathered = (strategy.reduce("mean", each) for each in strategy.run(step, args=(batch,)))
    replicas = _ran_on(strategy, batch)
    _same(total, x.sum(0), "`all_reduce('sum', ...)`")
    _same(mean, x.sum(0) / replicas, "`all_reduce('mean', ...)`")
    _same(gathered, x, "`all_gather`")


def _ran_on(strategy: Strategy, batch: Any) -> int:
    """Returns how many replicas run a step on a batch."""
    return int(strategy.reduce("sum", strategy.run(lambda batch: jnp.ones(()) + 0 * jnp.sum(batch), args=(batch,))))


def _gradients(strategy: Strategy, rtol: float) -> None:
    model = _Regression(strategy)
    with strategy.scope():
        unused = Variable(jnp.ones(3))
    given = _batches(_SIZES)
    for (x, y), batch in zip(given, strategy.distribute_dataset(given), strict=True):
        expected = jax.grad(lambda p, x=x, y=y: _loss(p, x, y))((jnp.zeros((_FEATURES, _OUTPUTS)), jnp.zeros(())))

        def step(x: Any, y: Any) -> PyTree:
            def loss() -> jax.Array:
                return _loss([p.value for p in model.params], x, y)

            rows = _replica().num_replicas_in_sync * len(x)
            summed = grad(loss, [*model.params, unused])()
            return summed, grad(
                lambda: loss() * _replica().num_replicas_in_sync / rows, model.params, aggregation="mean"
            )()

        summed, means = strategy.reduce("mean", strategy.run(step, args=batch))
        *found, nothing = summed
        _same(np.append(*found), np.append(*expected), f"the gradient of {len(x)} rows", rtol)
        _same(np.append(*means), np.append(*expected) / len(x), f"the gradient of the mean of {len(x)} rows", rtol)
        _true(nothing is None, "the gradient with respect to a variable that the loss does not depend on is not None")


def _plain_gradients(strategy: Strategy, rtol: float) -> None:
    given = _batches(_SIZES)
    for (x, y), batch in zip(given, strategy.distribute_dataset(given), strict=True):
        params = np.zeros((_FEATURES, _OUTPUTS), np.float32), np.zeros((), np.float32)
        expected = jax.grad(_loss)(params, x, y)
        found = strategy.run(jax.grad(_loss), args=(strategy.replicate(params), *batch))
        found = strategy.reduce("mean", found)
        _same(np.append(*found), np.append(*expected), f"`jax.grad` of a replicated pytree, of {len(x)} rows", rtol)


def _training(sizes: Sequence[int]) -> Callable[[Strategy, float], None]:
    def check(strategy: Strategy, rtol: float) -> None:
        model = _Regression(strategy)
        model.train(sizes)
        model.check(sizes, rtol)

    return check


def _fitted(strategy: Strategy, rtol: float) -> None:
    if not keras_is_loaded():
        return  # A script without Keras does not pay for it.
    found, expected = _weights_of_fit(strategy.scope()), _weights_of_fit(contextlib.nullcontext())
    _same(found, expected, "what `Model.fit` has made of the weights")


def _weights_of_fit(scope: contextlib.AbstractContextManager[object]) -> np.ndarray:
    import keras

    ((x, y),) = _batches((3 * _ROWS + 1,))
    with scope:
        init = keras.initializers.RandomNormal(seed=1)
        layers = [keras.layers.Dense(size, "tanh", kernel_initializer=init) for size in (4, _OUTPUTS)]
        model = keras.Sequential([keras.Input((_FEATURES,)), *layers])
        model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse")
    model.fit(x, y, batch_size=_ROWS, epochs=2, shuffle=False, verbose=0)
    return np.concatenate([np.ravel(weight) for weight in model.get_weights()])


def _equal_copies(strategy: Strategy, rtol: float) -> None:
    model = _Regression(strategy)
    model.train(_SIZES)
    for param in model.params:
        for copy in strategy.local_results(param):
            _same(copy, param.numpy(), f"a replica's copy of the {param.name}")


def _divergence(strategy: Strategy, rtol: float) -> None:
    with strategy.scope():
        variable = Variable(0.0)
    if strategy.num_replicas_in_sync == 1:
        return
    try:
        strategy.run(lambda: variable.assign(jnp.float32(_replica().replica_id_in_sync_group)))
    except ReplicaDivergenceError:
        return
    raise _Broken("a mirrored variable took another value on each replica, and no ReplicaDivergenceError was raised")


def _on_read(strategy: Strategy, rtol: float) -> None:
    with strategy.scope():
        total = Variable(0.0, synchronization="on_read", aggregation="sum")
        steps = Variable(0, aggregation="only_first_replica")

    def count(batch: jax.Array) -> None:
        total.assign_add(jnp.sum(batch))
        steps.assign_add(1)

    expected = 0.0
    for batch, x in _numbered(strategy):
        strategy.run(count, args=(batch,))
        expected += float(x.sum())
    _same(total.numpy(), expected, "a variable that counts on each replica, when it is read,")
    _same(steps.numpy(), len(_SIZES), "a counter of steps")


def _failing(strategy: Strategy, rtol: float) -> None:
    model = _Regression(strategy)
    model.train((_ROWS,))
    before = [param.numpy() for param in model.params]

    def step(x: Any, y: Any) -> None:
        model.step(x, y)
        raise _Wanted

    (batch,) = strategy.distribute_dataset(_batches((_ROWS,)))
    try:
        strategy.run(step, args=batch)
    except _Wanted:
        for param, expected in zip(model.params, before, strict=True):
            _same(param.numpy(), expected, f"the {param.name} after a step that raised an error")
    else:
        raise _Broken("an error that a step raised did not reach the caller")


class _Wanted(Exception):
    """Raised in a step on purpose."""


def _updated(strategy: Strategy, rtol: float) -> None:
    with strategy.scope():
        variable = Variable(jnp.ones(3))
    strategy.update(variable, lambda v, x: v.assign_add(x), args=(2.0,))
    _same(variable.numpy(), np.full(3, 3.0), "a variable after `update`")
    for copy in strategy.local_results(variable):
        _same(copy, np.full(3, 3.0), "a replica's copy after `update`")


def _state(strategy: Strategy, rtol: float) -> None:
    given = {"w": np.arange(3, dtype=np.float32), "n": 0}
    state = strategy.replicate(given)
    for batch, _ in _numbered(strategy):
        state = strategy.run(lambda s, b: {"w": s["w"] * 2, "n": s["n"] + 1}, args=(state, batch))
    _same(state["w"], given["w"] * 2 ** len(_SIZES), "state that goes through `run`")
    _same(state["n"], len(_SIZES), "a number in such a state")


def _from_function(strategy: Strategy, rtol: float) -> None:
    value = strategy.distribute_values_from_function(lambda c: np.float32(c.replica_id_in_sync_group))
    found = strategy.run(lambda v: jnp.asarray(v)[None] * 1, args=(value,))
    _same(
        strategy.gather(found), np.arange(strategy.num_replicas_in_sync), "what `distribute_values_from_function` gives"
    )


def _one_program(strategy: Strategy, rtol: float) -> None:
    model = _Regression(strategy)
    step = Function(lambda *batch: strategy.run(model.step, args=batch))
    for batch in strategy.distribute_dataset(_batches((_ROWS,) * 3)):
        step(*batch)
    model.check((_ROWS,) * 3, rtol)
    _true(step.num_programs == 1, f"three batches of one shape made {step.num_programs} programs")


def _restored(strategy: Strategy, rtol: float) -> None:
    if strategy.num_workers > 1:
        return  # The workers need a folder that all of them see.
    model, sizes = _Regression(strategy), (_ROWS,) * 2
    model.train(sizes)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Checkpoint(params=model.params, momenta=model.momenta)
        path = checkpoint.write(Path(folder) / "checkpoint")
        for variable in (*model.params, *model.momenta):
            variable.assign(jnp.zeros_like(variable.value) - 1)
        checkpoint.restore(path)
    model.check(sizes, rtol)


_CHECKS = (
    _Check("replicas are numbered from 0", _numbers),
    _Check("it is current in its scope, and variables made there belong to it", _current),
    _Check("each row of a batch reaches one replica, in order, also of batches that do not divide", _rows),
    _Check("`reduce` is exact for any number of rows", _reduced),
    _Check("a result that is equal on all replicas counts once for each", _counted),
    _Check("collectives of the replica context are exact", _collectives),
    _Check("gradients of `rx.grad` are summed over all rows", _gradients),
    _Check("gradients of `jax.grad` are summed over all rows", _plain_gradients),
    _Check("training on even batches is that of one device", _training((_ROWS,) * 5)),
    _Check("training on batches that do not divide is that of one device", _training(_SIZES)),
    _Check("`Model.fit` is that of Keras, where the script has imported Keras", _fitted),
    _Check("all replicas have the same parameters after training", _equal_copies),
    _Check("a mirrored variable refuses a value that differs between replicas", _divergence),
    _Check("variables count on each replica, and are combined when they are read", _on_read),
    _Check("a step that raises an error leaves variables as they were", _failing),
    _Check("`update` changes all copies of a variable", _updated),
    _Check("state that goes through `run` comes back", _state),
    _Check("`distribute_values_from_function` gives each replica its value", _from_function),
    _Check("batches of one shape make one program", _one_program),
    _Check("a checkpoint brings the training back", _restored),
)
