"""Runs a converted script on replicax under control.

python -m replicax.tensorflow.proof.on_replicax SPECIFICATION.json
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import numpy as np

from replicax.contracts.variable_access import VariableLike, array_of, name_of
from replicax.program import Function
from replicax.tensorflow.proof.draws import Draws
from replicax.tensorflow.proof.keras_controls import control_fit, control_initializers, control_layers
from replicax.tensorflow.proof.on_tensorflow import run_script
from replicax.tensorflow.proof.recording import Recorder
from replicax.typing import PyTree

# The names that scripts use, which the launcher and the command line pass on too.
rx = importlib.import_module("replicax")


def main(path: str) -> None:
    """Runs the script of a specification, and writes its recording."""
    specification = json.loads(Path(path).read_text(encoding="utf-8"))
    np.random.seed(0)
    recorder = Recorder(specification["steps"], specification["stop"], specification["every"])
    _control(recorder, Draws())
    error = run_script(specification["script"], specification["arguments"])
    jax.effects_barrier()
    recorder.recording(error).write(Path(specification["out"]))


def _control(recorder: Recorder, draws: Draws) -> None:
    import keras

    def as_tensor(values: np.ndarray, dtype: object) -> object:
        return keras.ops.convert_to_tensor(values.astype(keras.backend.standardize_dtype(dtype or "float32")))

    control_initializers(keras.initializers, draws, as_tensor)
    control_layers(keras.layers)
    _control_tpu()
    _control_data()
    _control_draws(draws)
    control_fit(keras.Model, recorder, keras.callbacks.Callback, _settle)
    sites = _Sites(recorder)
    _record_objectives(sites)
    _record_fit(sites)
    for owner in (Function, *_strategies()):
        for name in ("__call__", "run"):
            if name in vars(owner):
                setattr(owner, name, recorder.around(vars(owner)[name], jax.effects_barrier))
    if jax.default_backend() != "tpu":
        # As on the other side: its arithmetic is that of mirrored devices.
        vars(rx)["TPUStrategy"] = lambda *_, **__: rx.MirroredStrategy()
    optimizer = keras.optimizers.Optimizer
    optimizer.apply = recorder.around(optimizer.apply, jax.effects_barrier)


def _control_tpu() -> None:
    """Lets a TPU's strategy have the devices that are here."""
    strategy = rx.TPUStrategy

    def on_any(*args: object, **kwargs: object) -> object:
        return strategy(*args, platform=jax.default_backend(), **kwargs)

    setattr(rx, "TPUStrategy", on_any)  # noqa: B010 - a type checker does not let classes be set


def _strategies() -> list[type]:
    found: list[type] = [rx.Strategy]
    for kind in found:
        below: list[type] = kind.__subclasses__()
        found += [each for each in below if each not in found]
    return found


def _control_draws(draws: Draws) -> None:
    import keras

    def normal(
        shape: Sequence[int], mean: float = 0.0, stddev: float = 1.0, dtype: object = None, seed: object = None
    ) -> object:
        size = tuple(map(int, shape))
        values = mean + stddev * draws.normal("normal", size, draws.number("normal", size))
        return keras.ops.convert_to_tensor(values, dtype or "float32")

    def uniform(
        shape: Sequence[int], minval: float = 0.0, maxval: float = 1.0, dtype: object = None, seed: object = None
    ) -> object:
        size = tuple(map(int, shape))
        values = draws.uniform("uniform", size, draws.number("uniform", size))
        return keras.ops.convert_to_tensor(minval + (maxval - minval) * values, dtype or "float32")

    keras.random.normal = keras.random.truncated_normal = normal
    keras.random.uniform = uniform
    keras.random.dropout = lambda inputs, *args, **kwargs: inputs
    keras.random.shuffle = lambda x, *args, **kwargs: x


def _control_data() -> None:
    """Lets rows of files and datasets of Grain keep their order, where there are any."""
    rx.data.Rows.shuffle = lambda self, *_, **__: self
    if importlib.util.find_spec("grain") is None:
        return
    grain = importlib.import_module("grain")
    grain.MapDataset.shuffle = lambda self, *_, **__: self


def _settle(model: object) -> None:
    sync = getattr(model, "jax_state_sync", None)
    if sync is not None:
        sync()
    jax.effects_barrier()


class _Sites:
    """The places of a script that differentiate, by what they differentiate with respect to."""

    def __init__(self, recorder: Recorder):
        self._recorder = recorder
        self._numbers: dict[tuple[int, ...], int] = {}
        self._kept: list[Sequence[VariableLike]] = []
        #: How many objectives are being computed, one inside of another.
        self.depth = 0

    def record(self, value: jax.Array, variables: Sequence[VariableLike]) -> None:
        """Records an objective each time that the program runs which is being traced."""
        key = tuple(map(id, variables))
        if key not in self._numbers:
            self._kept.append(variables)  # so that no other variable gets the same identity
            self._numbers[key] = self._recorder.site(
                lambda: [(name_of(each), np.asarray(array_of(each))) for each in variables]
            )
            if not isinstance(value, jax.core.Tracer):
                self._recorder.keep_initial(self._numbers[key])
        context = rx.get_replica_context()
        replica = 0 if context is None else context.replica_id_in_sync_group
        record = functools.partial(self._take, self._numbers[key])
        jax.debug.callback(record, replica, value)

    def _take(self, site: int, replica: np.ndarray, value: np.ndarray) -> None:
        self._recorder.objective(site, int(replica), float(value))


def _record_objectives(sites: _Sites) -> None:
    """Records what `rx.value_and_grad` and `rx.grad` differentiate."""
    for name in ("value_and_grad", "grad"):
        setattr(rx, name, _recording(getattr(rx, name), sites))
    steps = importlib.import_module("replicax.estimator.steps")
    setattr(steps, "value_and_grad", _recording(steps.value_and_grad, sites))  # noqa: B010 - a name of a module


def _recording(differentiate: Callable, sites: _Sites) -> Callable:
    @functools.wraps(differentiate)
    def recorded(
        loss_fn: Callable, variables: PyTree, has_aux: bool = False, *args: object, **kwargs: object
    ) -> Callable:
        @functools.wraps(loss_fn)
        def objective(*inputs: PyTree, **named: PyTree) -> PyTree:
            sites.depth += 1
            try:
                result = loss_fn(*inputs, **named)
            finally:
                sites.depth -= 1
            sites.record(result[0] if has_aux else result, jax.tree_util.tree_leaves(variables))
            return result

        return differentiate(objective, variables, has_aux, *args, **kwargs)

    return recorded


def _record_fit(sites: _Sites) -> None:
    """Records what `Model.fit` differentiates."""
    import keras

    compute_loss = keras.Model.compute_loss

    @functools.wraps(compute_loss)
    def recorded(self: keras.Model, *args: object, **kwargs: object) -> object:
        loss = compute_loss(self, *args, **kwargs)
        if kwargs.get("training", False) and not sites.depth:  # Not what is differentiated, and recorded, around it.
            sites.record(loss, self.trainable_variables)
        return loss

    keras.Model.compute_loss = recorded


if __name__ == "__main__":
    main(sys.argv[1])
