"""Calling a user's model function and input function with the arguments that they declare."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping

from replicax.errors import EstimatorError
from replicax.estimator.spec import EstimatorSpec
from replicax.typing import PyTree

_MODEL_ARGUMENTS = ("features", "labels", "mode", "params", "config")
_INPUT_ARGUMENTS = ("mode", "params", "config", "input_context")


def parameters_of(fn: Callable[..., object]) -> dict[str, inspect.Parameter]:
    """Returns the parameters of a function by name; none for a function of C that does not tell them."""
    try:
        return dict(inspect.signature(fn).parameters)
    except ValueError:
        return {}


def arguments_of(fn: Callable[..., object], known: tuple[str, ...]) -> set[str]:
    """Returns which of the known arguments a function takes by keyword; all, if it has `**kwargs`."""
    parameters = parameters_of(fn).values()
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return set(known)
    return {each.name for each in parameters if each.kind is not each.VAR_POSITIONAL}


def check_model_fn(model_fn: object, params: Mapping[str, object] | None) -> None:
    """Checks the arguments that a model function declares."""
    if not callable(model_fn) or isinstance(model_fn, type):
        raise EstimatorError(
            f"`model_fn` is a function of (features, labels, mode, params, config), got {model_fn!r:.100}."
        )
    for each in parameters_of(model_fn).values():
        needed = each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
        if each.name not in _MODEL_ARGUMENTS and needed:
            raise EstimatorError(
                f"`model_fn` may take {', '.join(_MODEL_ARGUMENTS)}; {_name(model_fn)} has an argument {each.name!r}. "
                "Hyperparameters are keys of `params`."
            )
    given = arguments_of(model_fn, _MODEL_ARGUMENTS)
    if "features" not in given:
        raise EstimatorError(f"`model_fn` must have an argument `features`; {_name(model_fn)} takes {sorted(given)}.")
    if params and "params" not in given:
        raise EstimatorError(
            f"There are `params` ({', '.join(map(repr, params))}), but {_name(model_fn)} has no argument `params`."
        )


def call_model_fn(
    model_fn: Callable[..., object], features: PyTree, labels: PyTree, mode: str, params: PyTree, config: object
) -> EstimatorSpec:
    """Calls a model function with those of the arguments that it declares."""
    takes = arguments_of(model_fn, _MODEL_ARGUMENTS)
    if labels is not None and "labels" not in takes:
        raise EstimatorError(
            f"{_name(model_fn)} has no argument `labels`, but the input function returns labels. Add the argument, or "
            "let the input function return features only."
        )
    given = {"features": features, "labels": labels, "mode": mode, "params": params, "config": config}
    spec = model_fn(**{name: value for name, value in given.items() if name in takes})
    if not isinstance(spec, EstimatorSpec):
        hint = " It has no `return`." if spec is None else ""
        raise EstimatorError(f"{_name(model_fn)} returns an rx.estimator.EstimatorSpec, got {spec!r:.100}.{hint}")
    if spec.mode != mode:
        raise EstimatorError(
            f"{_name(model_fn)} was called with mode={mode!r}, but its EstimatorSpec has mode={spec.mode!r}. Pass on "
            "the argument: EstimatorSpec(mode=mode, ...)."
        )
    return spec


def check_input_fn(input_fn: object) -> None:
    """Checks that an input function needs no other arguments than an estimator gives."""
    if not callable(input_fn):
        raise EstimatorError(f"`input_fn` is a function that returns the data, got {input_fn!r:.100}.")
    for each in parameters_of(input_fn).values():
        needed = each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
        if needed and each.name not in _INPUT_ARGUMENTS:
            raise EstimatorError(
                f"An input function may take {', '.join(_INPUT_ARGUMENTS)}; {_name(input_fn)} needs {each.name!r}. "
                "Bind other arguments: functools.partial(input_fn, data=data), or a lambda."
            )


def takes_input_context(input_fn: Callable[..., object]) -> bool:
    """Returns whether an input function asks which worker it makes data for."""
    return "input_context" in parameters_of(input_fn)


def call_input_fn(input_fn: Callable[..., PyTree], **given: object) -> PyTree:
    """Calls an input function with those of the arguments `mode`, `params`, `config`, `input_context` it declares."""
    parameters = parameters_of(input_fn)
    return input_fn(**{name: value for name, value in given.items() if name in parameters})


def _name(fn: object) -> str:
    if isinstance(fn, functools.partial):
        return _name(fn.func)
    return repr(getattr(fn, "__name__", type(fn).__name__))
