"""Controls of both sides alike: of the parts that Keras 2 and Keras 3 have in common."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Protocol

import numpy as np

from .draws import Draws, initial_values
from .recording import Recorder

#: Layers whose call depends on random numbers.
RANDOM_LAYERS = [
    "AlphaDropout",
    "Dropout",
    "GaussianDropout",
    "GaussianNoise",
    "RandomBrightness",
    "RandomContrast",
    "RandomCrop",
    "RandomFlip",
    "RandomRotation",
    "RandomTranslation",
    "RandomZoom",
    "SpatialDropout1D",
    "SpatialDropout2D",
    "SpatialDropout3D",
]
FIXED = {"Constant", "Identity", "IdentityInitializer", "Ones", "Zeros", "Initializer", "STFT"}

AsTensor = Callable[[np.ndarray, object], object]  # of an array and a dtype, which may be None


def control_initializers(module: ModuleType | SimpleNamespace, draws: Draws, as_tensor: AsTensor) -> None:
    """Lets the random initializers of a module draw from `draws`."""
    for found in {each for each in vars(module).values() if isinstance(each, type)}:
        if found.__name__ not in FIXED and "__call__" in dir(found) and hasattr(found, "get_config"):
            setattr(found, "__call__", _drawing(draws, as_tensor))  # noqa: B010


def _drawing(draws: Draws, as_tensor: AsTensor) -> Callable:
    def __call__(self: object, shape: object, dtype: object = None, **_: object) -> object:
        size = tuple(int(each) for each in shape)  # type: ignore[attr-defined]
        numbers = self.__dict__.setdefault("_controlled_numbers", {})
        kind = type(self).__name__
        # One initializer gives the same values each time, like one with a seed: tracing twice changes nothing.
        if size not in numbers:
            numbers[size] = draws.number("variable", size)
        values = initial_values(draws, kind, self.get_config(), size, numbers[size])  # type: ignore[attr-defined]
        return as_tensor(values, dtype)

    return __call__


def control_layers(layers: ModuleType) -> None:
    """Makes the layers that need random numbers return their inputs."""
    for name in RANDOM_LAYERS:
        layer = getattr(layers, name, None)
        if layer is not None:
            layer.call = lambda self, inputs, *args, **kwargs: inputs


class ModelClass(Protocol):
    """`keras.Model`, the class."""

    fit: Callable
    compile: Callable


def control_fit(model: ModelClass, recorder: Recorder, callback: type, settle: Callable[[object], None]) -> None:
    """Lets `fit` keep the order of its rows, and makes each of its batches end at a boundary."""
    fit, compiled = model.fit, model.compile

    class Boundary(callback):
        def on_train_batch_end(self, batch: int, logs: object = None) -> None:
            settle(self.model)
            recorder.boundary()

    @functools.wraps(fit)
    def controlled_fit(self: object, *args: object, **kwargs: object) -> object:
        kwargs["shuffle"] = False
        given = kwargs.get("callbacks") or []
        kwargs["callbacks"] = [*(given if isinstance(given, list | tuple) else [given]), Boundary()]
        return fit(self, *args, **kwargs)

    @functools.wraps(compiled)
    def controlled_compile(self: object, *args: object, **kwargs: object) -> object:
        kwargs.pop("jit_compile", None)
        return compiled(self, *args, **kwargs)

    _owner(model, "fit").fit = controlled_fit
    _owner(model, "compile").compile = controlled_compile


def _owner(model: ModelClass, name: str) -> ModelClass:
    """Returns the class that defines a method: Keras asks whether it is overridden below that."""
    classes: tuple[type, ...] = inspect.getmro(model)  # type: ignore[arg-type]
    return next(each for each in classes if name in vars(each))  # type: ignore[return-value]
