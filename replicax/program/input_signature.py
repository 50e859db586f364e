"""`rx.function(input_signature=...)`: arguments that are held to shapes and dtypes, as `tf.function` does."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from replicax.compat.jax import strongly_typed
from replicax.errors import ArgumentError
from replicax.program.pytrees import is_array
from replicax.typing import Leaf, PyTree, PyTreeFunction
from replicax.values import PerReplica, is_per_replica

#: Which kinds of dtypes a Python or NumPy value may be converted from, by the kind that is asked for.
_SAFE = {"b": "b", "u": "ui", "i": "ui", "f": "uif", "c": "uifc"}


class InputSignature:
    """The shapes and dtypes of a function's arguments."""

    def __init__(self, specs: Sequence[PyTree], fn: PyTreeFunction, bound: int = 0):
        if not isinstance(specs, (list, tuple)):
            raise ArgumentError(
                f"`input_signature` is a list or tuple with a pytree of specs for each argument, got {specs!r:.200}. "
                "For one argument: [rx.TensorSpec((None, 3), 'float32')]."
            )
        for spec in jax.tree_util.tree_leaves(specs):
            if not _is_spec(spec):
                raise ArgumentError(
                    f"`input_signature` holds specs with a shape and a dtype (rx.TensorSpec), got {spec!r:.200}."
                )
        self.specs = tuple(specs)  # a pytree for each of the first parameters; None in a shape stands for any size
        self._fn, self._bound = fn, bound  # how many of its parameters are filled in already (`self`)
        self._name = getattr(fn, "__name__", repr(fn))

    @functools.cached_property
    def _parameters(self) -> list[str]:
        # When it is called: a method that is being decorated has a `self` that is not bound yet.
        return _checked_parameters(self._fn, len(self.specs), self._bound)

    def of_method(self, method: PyTreeFunction) -> InputSignature:
        """Returns the signature of the same function, bound to an instance."""
        return InputSignature(self.specs, method, bound=1)

    def bound(self, args: tuple[PyTree, ...], kwargs: dict[str, PyTree]) -> tuple[PyTree, ...]:
        """Returns the arguments of a call, by position and as the signature wants them."""
        given, kwargs = list(args), dict(kwargs)
        for name in self._parameters[len(given) : len(self.specs)]:
            if name not in kwargs:
                break
            given.append(kwargs.pop(name))
        if len(given) != len(self.specs) or kwargs:
            beyond = f" and {sorted(kwargs)}" if kwargs else ""
            raise ArgumentError(
                f"{self._name} takes the {len(self.specs)} argument(s) of its `input_signature`, got {len(given)}"
                f"{beyond}. Parameters outside of the signature keep their defaults."
            )
        return tuple(
            self._checked(value, spec, name)
            for value, spec, name in zip(given, self.specs, self._names(len(given)), strict=True)
        )

    def _names(self, count: int) -> list[str]:
        return [*self._parameters, *(f"argument {i}" for i in range(len(self._parameters), count))][:count]

    def _checked(self, value: PyTree, spec: PyTree, name: str) -> PyTree:
        structure: jax.tree_util.PyTreeDef
        expected: jax.tree_util.PyTreeDef
        leaves, structure = jax.tree_util.tree_flatten(value, is_leaf=is_per_replica)
        specs, expected = jax.tree_util.tree_flatten(spec)
        if structure != expected:
            raise ArgumentError(
                f"{name!r} of {self._name} must be a pytree like its `input_signature`, {expected}, got {structure}."
            )
        fitting = [self._fitted(leaf, spec, name) for leaf, spec in zip(leaves, specs, strict=True)]
        return jax.tree_util.tree_unflatten(structure, fitting)

    def _fitted(self, leaf: Leaf, spec: Leaf, name: str) -> Leaf:
        if hasattr(leaf, "__jax_array__") and not isinstance(leaf, PerReplica):
            leaf = jnp.asarray(leaf)  # a variable's value
        if not is_array(leaf) and not isinstance(leaf, (bool, int, float, complex, np.generic, PerReplica)):
            raise ArgumentError(
                f"{name!r} of {self._name} must be an array of {_shown(spec)}, got {type(leaf).__name__}."
            )
        value = leaf if isinstance(leaf, (PerReplica, jax.Array)) else np.asarray(leaf)
        shape, dtype = _kind(value)
        is_key = jnp.issubdtype(spec.dtype, jax.dtypes.extended)
        wanted = spec.dtype if is_key else jax.dtypes.canonicalize_dtype(spec.dtype)  # that of arrays in JAX
        converts = isinstance(value, np.ndarray) and _converts(dtype, wanted)
        if not _shapes_fit(shape, spec.shape) or (dtype != wanted and not converts):
            raise ArgumentError(
                f"{name!r} of {self._name} must be an array of {_shown(spec)}, as its `input_signature` says, got "
                f"{dtype}{list(shape)}. Convert it before (x.astype, reshape), or leave input_signature out: then "
                "each shape and dtype gets a program of its own."
            )
        if isinstance(value, np.ndarray) and not _in_range(value, wanted):
            raise ArgumentError(
                f"{name!r} of {self._name} must be an array of {_shown(spec)}, as its `input_signature` says, and "
                f"{leaf!r:.100} is out of the range of {wanted}. Name a larger dtype in the signature."
            )
        return strongly_typed(value, wanted) if not isinstance(value, PerReplica) else value


def _is_spec(spec: Leaf) -> bool:
    return hasattr(spec, "shape") and hasattr(spec, "dtype") and not is_array(spec)


def _checked_parameters(fn: PyTreeFunction, count: int, bound: int) -> list[str]:
    """Returns the names of the parameters that can be given by position."""
    parameters = list(inspect.signature(fn).parameters.values())[bound:]
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    positional = [p for p in parameters if p.kind in kinds]
    takes_more = any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters)
    required = [p.name for p in positional[count:] if p.default is p.empty]
    required += [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    if required or (count > len(positional) and not takes_more):
        raise ArgumentError(
            f"`input_signature` has {count} specs, but {getattr(fn, '__name__', fn)!r} takes "
            f"({', '.join(p.name for p in parameters)}). Give one for each parameter without a default."
        )
    return [p.name for p in positional]


def _kind(value: Leaf) -> tuple[tuple[int, ...], np.dtype]:
    if isinstance(value, PerReplica):
        return value.component_shape, value.stacked.dtype
    return tuple(value.shape), value.dtype


def _converts(dtype: np.dtype, wanted: np.dtype) -> bool:
    kind = "f" if jnp.issubdtype(wanted, jnp.floating) else getattr(wanted, "kind", "")
    have = "f" if jnp.issubdtype(dtype, jnp.floating) else dtype.kind
    return have in _SAFE.get(kind, "")


def _in_range(value: np.ndarray, wanted: np.dtype) -> bool:
    if not jnp.issubdtype(wanted, jnp.integer) or not value.size:
        return True
    limits = jnp.iinfo(wanted)
    return limits.min <= int(value.min()) and int(value.max()) <= limits.max


def _shapes_fit(shape: Sequence[int], wanted: Sequence[int | None]) -> bool:
    return len(shape) == len(wanted) and all(n is None or n == m for m, n in zip(shape, wanted, strict=True))


def _shown(spec: PyTree) -> str:
    return f"{spec.dtype}{list(spec.shape)}"
