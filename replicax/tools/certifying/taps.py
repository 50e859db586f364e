"""Taps: where the runner of a script sees what happens in a step.

Between steps they are on the host. Inside a step they are callbacks of the compiled program, one for each replica.
"""

from __future__ import annotations

import functools
import hashlib
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import primitives

import replicax.context as context
from replicax.compat.jax import varying_axes
from replicax.contracts.reduce_op import ReduceOp
from replicax.contracts.variable_access import VariableLike
from replicax.data.iterator import DistributedIterator, PassIterator
from replicax.keras.feeding import Feed
from replicax.keras.trainer import _LoopStep
from replicax.program import Function
from replicax.program.gradients.autodiff import Differentiation
from replicax.runtime.mesh import REPLICA_AXIS
from replicax.strategies.base import Strategy
from replicax.strategies.replica_context import ReplicaContext
from replicax.tools.certifying.perturbing import reversed_rows
from replicax.tools.certifying.recorder import Recorder
from replicax.tools.certifying.recording import Value
from replicax.typing import PyTree
from replicax.values import PerReplica, is_per_replica
from replicax.variables import Variable

#: Parts of the path of a file that is no user's.
_NOT_OF_USER = ("site-packages", "dist-packages")
#: Where replicax lies, which may be beside the script.
_REPLICAX = str(Path(__file__).parents[2]) + os.sep
#: The primitives whose operands' dtype says in what a step computes.
_PRODUCTS = (primitives.dot_general_p, primitives.conv_general_dilated_p)


class Taps:
    """Lets a recorder see what a script does.

    Args:
        recorder: Is told.
        script: The script, whose lines are named.
        worker: The number of this process.
        reverses_rows: Whether the rows of each batch come in the opposite order.
    """

    def __init__(self, recorder: Recorder, script: Path, worker: int, reverses_rows: bool):
        self._recorder, self._folder, self._worker = recorder, str(script.parent), worker
        self._reverses_rows = reverses_rows
        self._in_fit = 0
        self._trained: dict[int, Sequence[VariableLike]] = {}  # by the identity of the optimizer
        #: The dtypes of floating-point products.
        self.dtypes: set[str] = set()

    def install(self, rx: ModuleType) -> None:
        """Puts them in place, in this process, which is there for nothing else."""
        self._calls()
        self._batches()
        self._gradients()
        self._variables()
        self._dtypes()
        self._draws()
        vars(rx)["probe"] = self._probe

    # Steps.

    def _calls(self) -> None:
        around = self._recorder.around
        for owner in (Function, *_strategies()):
            for name in ("__call__", "run", "reduce"):
                if name in vars(owner):
                    _replace(owner, name, around(vars(owner)[name], "" if name == "__call__" else f" of {name}"))
        step = around(_LoopStep.__call__)

        def in_fit(*args: PyTree) -> PyTree:
            self._in_fit += 1
            try:
                return step(*args)
            finally:
                self._in_fit -= 1

        _replace(_LoopStep, "__call__", in_fit)

    # Rows.

    def _batches(self) -> None:
        place = Feed.placed

        def placed(feed: Feed, data: PyTree) -> PyTree:
            data = self._seen(data)
            return place(feed, data)

        _replace(Feed, "placed", placed)
        for owner in (PassIterator, DistributedIterator):
            _replace(owner, "__next__", self._next_of(owner))

    def _next_of(self, owner: type) -> Callable:
        following = vars(owner)["__next__"]

        def __next__(iterator: DistributedIterator) -> PyTree:
            value = following(iterator)
            is_whole = not (owner is DistributedIterator and isinstance(iterator, PassIterator))
            # The batches of `fit` are seen where they are placed, whatever they come from.
            return self._seen(value) if is_whole and not self._in_fit else value

        return __next__

    def _seen(self, batch: PyTree) -> PyTree:
        """Records the rows of a batch; returns it, or its rows in the other order."""
        leaves = jax.tree_util.tree_leaves(batch, is_leaf=is_per_replica)
        is_shared = all(not is_per_replica(leaf) and not isinstance(leaf, jax.Array) for leaf in leaves)
        # All workers of `fit` have the whole of a batch that is on the host: it is recorded once.
        if not (is_shared and self._worker):
            self._recorder.add(
                "rows", "the batch", f"worker {self._worker}", Value.of_rows(_digests(leaves)), "rows", self._line()
            )
        return reversed_rows(batch) if self._reverses_rows else batch

    # Losses, gradients, probes.

    def _gradients(self) -> None:
        own, reduced = Differentiation.own, Differentiation.reduced

        def own_seen(self_: Differentiation, *args: PyTree) -> PyTree:
            loss, aux, gradients = own(self_, *args)
            op = ReduceOp.MEAN if self_._loss_is_equal else self_._op
            # Of a loss whose gradients the script reduces itself nothing says how its parts make one.
            self._inside("loss", "the loss", loss, "each" if op is None or self_._op is None else op.name.lower())
            norm = jnp.sqrt(sum((jnp.sum(jnp.square(jnp.abs(g))) for g in gradients if g is not None), jnp.zeros(())))
            self._inside("local gradient norm", "the norm of a replica's gradient", norm, "each")
            return loss, aux, gradients

        def reduced_seen(self_: Differentiation, found: list[jax.Array | None]) -> list[jax.Array | None]:
            results = reduced(self_, found)
            if self_._op is not None:
                self._each("gradient", zip(self_.variables, results, strict=True))
            return results

        _replace(Differentiation, "own", own_seen)
        _replace(Differentiation, "reduced", reduced_seen)
        self._plain_gradients()
        all_reduce = ReplicaContext.all_reduce

        @functools.wraps(all_reduce)
        def all_reduce_seen(
            context_: ReplicaContext, op: ReduceOp | str, value: PyTree, *args: Any, **named: Any
        ) -> PyTree:
            leaves = [leaf for leaf in jax.tree_util.tree_leaves(value) if _is_float(leaf)]
            norm = jnp.sqrt(sum((jnp.sum(jnp.square(jnp.abs(leaf))) for leaf in leaves), jnp.zeros(())))
            self._inside("local gradient norm", "the norm of what is reduced", norm, "each")
            result = all_reduce(context_, op, value, *args, **named)
            for path, leaf in jax.tree_util.tree_flatten_with_path(result)[0]:
                if _is_float(leaf):
                    self._inside("all-reduce", f"all_reduce{jax.tree_util.keystr(path)}", leaf, "one")
            return result

        _replace(ReplicaContext, "all_reduce", all_reduce_seen)

    def _plain_gradients(self) -> None:
        """Taps `jax.grad` and `jax.value_and_grad` where a replica's function calls them."""
        for name in ("grad", "value_and_grad"):
            original = getattr(jax, name)

            @functools.wraps(original)
            def make(
                fun: Callable,
                argnums: int | Sequence[int] = 0,
                *args: Any,
                _original: Callable = original,
                **kwargs: Any,
            ) -> Callable:
                differentiated = _original(fun, argnums, *args, **kwargs)
                has_aux = bool(args[0] if args else kwargs.get("has_aux", False))

                @functools.wraps(differentiated)
                def call(*operands: PyTree, **named: PyTree) -> PyTree:
                    result = differentiated(*operands, **named)
                    if context.current().replica is None:
                        return result
                    gradients = result
                    if _original.__name__ == "value_and_grad":
                        value, gradients = result
                        self._inside("loss", "the loss", value[0] if has_aux else value, "sum")
                    elif has_aux:
                        gradients = result[0]
                    for path, leaf in jax.tree_util.tree_flatten_with_path(gradients)[0]:
                        # Where replicas differentiate for themselves, the sum comes later.
                        if _is_float(leaf) and REPLICA_AXIS not in varying_axes(leaf):
                            self._inside("gradient", f"the gradient{jax.tree_util.keystr(path)}", leaf, "one")
                    return result

                return call

            setattr(jax, name, make)

    def _each(self, kind: str, pairs: Any) -> None:
        for variable, gradient in pairs:
            if gradient is not None:
                self._inside(kind, self._recorder.name(variable), gradient, "one")

    def _inside(self, kind: str, name: str, value: jax.Array, combine: str, dtype: object = None) -> None:
        """Records a value, made of one of `dtype`, each time that the program runs which is being traced."""
        replica = context.current().replica
        index = 0 if replica is None else replica.replica_id_in_sync_group  # type: ignore[attr-defined]
        is_global, line = replica is None, self._line()
        self._recorder.traces(kind)  # JAX tells one process alone of what is global.

        def take(index: np.ndarray, value: np.ndarray) -> None:
            part = "all" if is_global else f"replica {int(index)}"
            found = Value.of(value)
            self._recorder.add(kind, name, part, found._replace(dtype=str(dtype or found.dtype)), combine, line)

        jax.debug.callback(take, index, value)

    def _probe(self, name: str, value: PyTree) -> PyTree:
        array = jnp.asarray(value)
        if array.ndim and array.dtype != bool:
            rows = array.astype(jnp.promote_types(array.dtype, jnp.float32))
            squares = jnp.square(jnp.abs(rows)).sum(0)
            self._inside("probe", f"{name}, summed over rows", rows.sum(0), "sum", array.dtype)
            self._inside("probe", f"{name}, squares summed over rows", squares, "sum", array.dtype)
        else:
            self._inside("probe", name, array, "mean")
        return value

    # Variables.

    def _variables(self) -> None:
        import keras

        for owner in {Variable, keras.Variable}:
            self._created(owner)
        for owner, kind in ((keras.optimizers.Optimizer, "optimizer"), (keras.metrics.Metric, "metric")):
            self._owning(owner, kind)
        optimizer = keras.optimizers.Optimizer
        apply, build = optimizer.apply, optimizer.build

        @functools.wraps(build)
        def built(self_: keras.optimizers.Optimizer, variables: Sequence[VariableLike]) -> object:
            self._trained[id(self_)] = variables
            return build(self_, variables)

        optimizer.build = built

        @functools.wraps(apply)
        def applied(self_: keras.optimizers.Optimizer, grads: Sequence, trainable_variables: Any = None) -> object:
            known = trainable_variables if trainable_variables is not None else self._trained.get(id(self_), ())
            self._each("applied gradient", zip(known, grads, strict=False))
            return apply(self_, grads, trainable_variables)

        optimizer.apply = self._recorder.around(applied)
        compute_loss = keras.Model.compute_loss

        @functools.wraps(compute_loss)
        def loss_seen(self_: keras.Model, *args: Any, **kwargs: Any) -> object:
            loss = compute_loss(self_, *args, **kwargs)
            if kwargs.get("training", False) and self._in_fit and context.current().replica is None:
                self._inside("loss", "the loss", loss, "one")
            return loss

        keras.Model.compute_loss = loss_seen

    def _created(self, owner: type) -> None:
        make = owner.__init__  # type: ignore[misc]

        @functools.wraps(make)
        def made(variable: VariableLike, *args: Any, **kwargs: Any) -> None:
            make(variable, *args, **kwargs)
            self._recorder.variable(variable, self._line())

        _replace(owner, "__init__", made)

    def _owning(self, owner: type, kind: str) -> None:
        kept: list[Any] = []
        make = owner.__init__  # type: ignore[misc]

        @functools.wraps(make)
        def made(object_: Any, *args: Any, **kwargs: Any) -> None:
            make(object_, *args, **kwargs)
            kept.append(object_)

        _replace(owner, "__init__", made)
        self._recorder.owners.append((kept, kind))

    def _dtypes(self) -> None:
        for primitive in _PRODUCTS:
            bind = primitive.bind

            def bound(*operands: Any, _bind: Callable = bind, **parameters: Any) -> Any:
                self.dtypes |= {str(each.dtype) for each in operands if jnp.issubdtype(each.dtype, jnp.floating)}
                return _bind(*operands, **parameters)

            primitive.bind = bound

    def _draws(self) -> None:
        """Taps what a replica's function draws by `jax.random`."""
        for name in ("bernoulli", "normal", "uniform"):
            original = getattr(jax.random, name)

            @functools.wraps(original)
            def drawn(*args: Any, _original: Callable = original, _name: str = name, **kwargs: Any) -> jax.Array:
                result: jax.Array = _original(*args, **kwargs)
                if context.current().replica is not None and result.ndim:
                    self._inside("draw", f"jax.random.{_name}", result, "each")
                return result

            setattr(jax.random, name, drawn)

    # Lines.

    def _line(self) -> str:
        """Returns the innermost line of the user's, such as `"train.py:12"`; nothing outside of it."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if self._is_users(frame.f_code.co_filename):
                return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
            frame = frame.f_back
        return ""

    def _is_users(self, file: str) -> bool:
        is_beside = file.startswith(self._folder) and not file.startswith(_REPLICAX)
        return is_beside and not any(part in file for part in _NOT_OF_USER)


def _strategies() -> list[type]:
    found: list[type] = [Strategy]
    for kind in found:
        below: list[type] = kind.__subclasses__()
        found += [each for each in below if each not in found]
    return found


def _replace(owner: type, name: str, function: Callable) -> None:
    setattr(owner, name, function)


def _is_float(leaf: object) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jnp.inexact)


def _digests(leaves: Sequence[PyTree]) -> list[str]:
    """Returns a digest of each row of a batch that this process has."""
    arrays = [array for leaf in leaves if (array := _host_rows(leaf)) is not None]
    if not arrays or len({len(array) for array in arrays}) > 1:
        return []
    return [
        hashlib.blake2b(
            b"".join(np.ascontiguousarray(array[row]).tobytes() for array in arrays), digest_size=8
        ).hexdigest()
        for row in range(len(arrays[0]))
    ]


def _host_rows(leaf: PyTree) -> np.ndarray | None:
    """Returns the rows of a leaf of a batch that this process has; None for one without rows."""
    array = leaf.stacked if isinstance(leaf, PerReplica) else leaf
    if isinstance(array, jax.Array):
        # Each part once, in the order of rows; other processes have the others.
        parts = {str(shard.index): shard for shard in array.addressable_shards}
        ordered = sorted(parts.values(), key=lambda shard: [each.start or 0 for each in shard.index])
        held = [np.asarray(shard.data) for shard in ordered]
        none = np.empty((0, *array.shape[1:]), array.dtype)  # All that a worker has whose replicas are idle.
        array = np.concatenate([none, *held]) if array.ndim else held[0]
    array = np.asarray(array)
    if isinstance(leaf, PerReplica):
        array = array.reshape(-1, *array.shape[2:])
    return array if array.ndim else None
