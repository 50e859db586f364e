"""A model function with its variables, for one call of `train`, `evaluate` or `predict`.

The function is called each time a step is traced, and makes its layers and variables then. They are those of the first
call (`program/keras/variable_store.py`).
"""

from __future__ import annotations

import contextlib
import logging
import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import cast

import jax
import jax.numpy as jnp
import numpy as np

from replicax.checkpoint import entries, restore_variables
from replicax.compat.keras_backend import keras_is_loaded
from replicax.contracts.variable_access import AssignableLike, VariableLike, dtype_of, name_of, synchronization_of
from replicax.errors import EstimatorError, InitialValueError
from replicax.estimator.batches import features_and_labels
from replicax.estimator.mode_keys import ModeKeys
from replicax.estimator.optimizers import Updater, updater_of
from replicax.estimator.spec import EstimatorSpec
from replicax.program import function
from replicax.program.keras.variable_store import VariableStore
from replicax.strategies import Strategy
from replicax.typing import PyTree
from replicax.variables import Variable

_log = logging.getLogger("replicax.estimator")

GLOBAL_STEP = "global_step"

ModelCall = Callable[[PyTree, PyTree, str], EstimatorSpec]


class BuiltModel:
    """A model function with the variables that it makes, the spec that it returns, and what updates the variables."""

    spec: EstimatorSpec  # of the call that built the model: its optimizer, metrics and hooks count
    updater: Updater  # in a training only

    def __init__(self, call: ModelCall, mode: str, strategy: Strategy):
        self._call, self.mode, self.strategy = call, mode, strategy
        self.store = VariableStore()
        with self.store.call():
            self.global_step = Variable(0, dtype="int32", trainable=False, name=GLOBAL_STEP)
        self.trainable: list[VariableLike] = []

    # Building.

    def build(self, batch: PyTree, seed: int | None = None) -> None:
        """Makes all variables, for batches like this one; nothing is computed with them."""
        with _seeded(seed):
            try:
                used = function(self._forward).build(batch)
            except InitialValueError:  # A variable is made of `jnp.zeros(3)`, say, which in a trace is no number.
                self._call_for_real(batch)
                used = function(self._forward).build(batch)
            self._check_own(used)
            if self.mode == ModeKeys.TRAIN:
                self._make_updater()

    def _forward(self, batch: PyTree) -> None:
        features, labels = features_and_labels(batch, self.mode)
        if self.strategy.is_asynchronous:  # Its `run` is for functions that are scheduled.
            self._forward_of_replica(features, labels)
        else:
            self.strategy.run(self._forward_of_replica, args=(features, labels))

    def _forward_of_replica(self, features: PyTree, labels: PyTree) -> None:
        with self.called():
            self.spec = self.call(features, labels)

    def _call_for_real(self, batch: PyTree) -> None:
        """Makes the variables by a call with the rows of the first replica."""
        rows = jax.tree_util.tree_map(np.asarray, self.strategy.local_results(batch)[0])
        self.store.call_for_real(self._forward_of_replica, *features_and_labels(rows, self.mode))

    def _check_own(self, used: Sequence[VariableLike]) -> None:
        own = {id(variable) for variable in self.store.variables.values()}
        foreign = [name_of(variable) for variable in used if id(variable) not in own]
        if foreign:
            raise EstimatorError(
                f"The model function uses variables that it has not made: {', '.join(foreign)}. They would be neither "
                "saved nor restored. Make layers, models, metrics and variables inside of the function."
            )

    def _make_updater(self) -> None:
        named = self.store.variables
        del named[GLOBAL_STEP]
        trainable = {
            name: variable
            for name, variable in named.items()
            if variable.trainable and jnp.issubdtype(dtype_of(variable), jnp.floating)  # type: ignore[attr-defined]
        }
        if not trainable and self.spec.optimizer is not None:
            raise EstimatorError(
                "The model function makes no trainable variables, so there is nothing to train. Make its layers, or "
                "its `rx.Variable`s, inside of the function."
            )
        self.trainable = list(trainable.values())
        with self.store.call(goes_on=True):
            self.updater = updater_of(self.spec, trainable)
        self._check_own(self.updater.state)

    @contextlib.contextmanager
    def called(self) -> Iterator[None]:
        """Gives the model function its variables, in a `with` block around its call and the use of its results."""
        with self.store.call():
            self.store.skip(GLOBAL_STEP)
            yield

    def call(self, features: PyTree, labels: PyTree) -> EstimatorSpec:
        """Calls the model function, in `called()`."""
        return self._call(features, labels, self.mode)

    # Its variables.

    @property
    def variables(self) -> dict[str, AssignableLike]:
        """The variables in a checkpoint, by name: all but those that metrics count in."""
        counters = {id(variable) for metric in self.spec.metrics.values() for variable in metric.variables}
        return {
            name: cast("AssignableLike", variable)
            for name, variable in self.store.variables.items()
            if id(variable) not in counters and not _is_of_metric(variable)
        }

    def restore(self, path: str) -> None:
        """Restores all variables from a checkpoint, which may have more (an optimizer's, say)."""
        variables = self.variables
        found = entries(path)
        missing = [name for name in variables if name not in found]
        if missing:
            raise EstimatorError(
                f"The checkpoint {path} lacks variables of the model: {', '.join(missing)}. It has: "
                f"{', '.join(found)}. The model function gives its layers and variables the same names in all modes."
            )
        fewer = numbered_beyond(variables, found)
        if fewer:
            _log.warning(
                "%s has %s, which the model function did not make in the mode %r. Layers and variables without names "
                "are numbered in the order in which they are made: if one that is only for training is made before "
                "others of its kind, these get its values here. Give layers that not all modes have a name.",
                path,
                ", ".join(map(repr, fewer)),
                self.mode,
            )
        restore_variables(path, variables, partial=True)


def numbered_beyond(here: Iterable[str], there: Iterable[str]) -> list[str]:
    """Returns the layers, and variables without one, that only a checkpoint has, and that a number alone tells apart.

    Example:
        >>> numbered_beyond(["dense/kernel"], ["dense/kernel", "dense_1/kernel", "head/kernel"])
        ['dense_1']
    """
    ours, theirs = ({_owner(name) for name in names if "seed_generator" not in name} for names in (here, there))
    kinds = {_numbered(owner) for owner in ours}
    return sorted(owner for owner in theirs - ours if owner != _numbered(owner) and _numbered(owner) in kinds)


def _owner(name: str) -> str:
    return name.rpartition("/")[0] or name


def _numbered(owner: str) -> str:
    """Returns the name without its number."""
    return re.sub(r"_\d+$", "", owner)


def _is_of_metric(variable: VariableLike) -> bool:
    """Returns whether a variable is what a Keras metric counts in, also of one that is not in the spec."""
    return not isinstance(variable, Variable) and synchronization_of(variable) == "on_read"


@contextlib.contextmanager
def _seeded(seed: int | None) -> Iterator[None]:
    """Seeds the generators that Keras takes its first values from, and gives the user's back as they were."""
    if seed is None or not keras_is_loaded():
        yield
        return
    import keras

    python, numpy = random.getstate(), np.random.get_state()
    keras.utils.set_random_seed(seed)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
