"""The arguments of a program that each worker has made for itself: numbers, arrays of NumPy, and settings.

Each replica computes with those of its own worker. A value that differs between workers must be per-replica; all others
must be equal, or the replicas' variables drift apart. So the workers compare these arguments at the first call of a
program, beside the program itself, and at later ones by the digests of their calls (`runtime/call_order.py`).
"""

from __future__ import annotations

import inspect
import zlib
from collections.abc import Hashable, Sequence

import jax
import numpy as np

from replicax.program.flax.modules import held
from replicax.program.pytrees import Structure, per_replica_arrays
from replicax.runtime.call_order import ArgumentValue
from replicax.typing import Leaf, PyTreeFunction
from replicax.values.containers import opened

_NUMBERS = (int, float, complex, np.generic)  # Their value never changes.
_SETTINGS = (bool, int, float, str)
_WHOLE, _SAMPLE = 2**16, 2**12  # bytes of an array that are looked at in each call, and elements of a larger one
_FEW, _LONGEST = 4, 60  # elements and characters that are shown


class HostArguments:
    """Describes these arguments of one program."""

    def __init__(self, names: dict[int, str], settings: tuple[ArgumentValue, ...]):
        self._names, self._settings = names, settings  # names by position among the arrays
        self._last: dict[int, tuple[Leaf, ArgumentValue]] = {}  # of numbers

    @classmethod
    def of(cls, fn: PyTreeFunction, structure: Structure, arrays: Sequence[Leaf]) -> HostArguments | None:
        """Returns those of a function with the arguments of which `arrays` are the arrays; None if there are none."""
        fixed = dict(structure.static)
        if not any(map(_is_own, arrays)) and not any(isinstance(leaf, _SETTINGS) for leaf in fixed.values()):
            return None
        given = opened(held(structure.rebuild(arrays)))
        stacked, _ = per_replica_arrays(given)
        found, _ = jax.tree_util.tree_flatten_with_path(given)
        parameters = parameters_of(fn)
        names = [argument_name(path, parameters) for path, _ in found]
        of_arrays = [name for i, name in enumerate(names) if i not in fixed]
        kinds = zip(of_arrays, arrays, stacked, strict=True)
        own = {i: name for i, (name, each, differs) in enumerate(kinds) if _is_own(each) and not differs}
        settings = (
            ArgumentValue(names[i], zlib.crc32(repr(leaf).encode(errors="replace")), f"{leaf!r:.{_LONGEST}}", True)
            for i, leaf in fixed.items()
            if isinstance(leaf, _SETTINGS)
        )
        return cls(own, tuple(settings))

    def values(self, arrays: Sequence[Leaf], is_first: bool) -> tuple[ArgumentValue, ...]:
        """Returns what workers compare in one call; in the first one the settings too, and all of large arrays."""
        own = tuple(self._value(i, name, arrays[i], is_first) for i, name in self._names.items())
        return own + self._settings if is_first else own

    def _value(self, position: int, name: str, value: Leaf, is_first: bool) -> ArgumentValue:
        if not isinstance(value, _NUMBERS):
            array = np.asarray(value)
            checksum = _checksum(array if is_first else _looked_at(array))
            return ArgumentValue(name, checksum, _shown(array, checksum))
        last = self._last.get(position)
        if last is None or last[0] is not value:
            last = self._last[position] = value, ArgumentValue(name, _checksum(np.asarray(value)), f"{value}")
        return last[1]


def _is_own(leaf: Leaf) -> bool:
    return isinstance(leaf, (*_NUMBERS, np.ndarray))


def _looked_at(array: np.ndarray) -> np.ndarray:
    """Returns the elements that are compared in each call."""
    return array if array.nbytes <= _WHOLE else array.flat[:: -(-array.size // _SAMPLE)]


def _checksum(array: np.ndarray) -> int:
    """Returns that of the numbers as the program computes with them: in float32, two machines round alike."""
    with np.errstate(all="ignore"):
        computed = array.astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False)
    return zlib.crc32(np.ascontiguousarray(computed).reshape(-1).view(np.uint8).data)


def _shown(array: np.ndarray, checksum: int) -> str:
    first = ", ".join(f"{each}" for each in array.flat[:_FEW])
    more = f", ...] (checksum {checksum:08x})" if array.size > _FEW else "]"
    return f"{array.dtype}{array.shape} [{first}{more}"


def parameters_of(fn: PyTreeFunction) -> list[str]:
    """Returns the names of a function's positional parameters, as far as they are known."""
    try:
        # A wrapper may be given other arguments than what it wraps.
        signature = inspect.signature(fn, follow_wrapped=False)
    except (TypeError, ValueError):
        return []
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [name for name, parameter in signature.parameters.items() if parameter.kind in kinds]


def argument_name(path: Sequence[Hashable], parameters: Sequence[str]) -> str:
    """Returns how a user calls a leaf of `(args, kwargs)`."""
    (which, given), rest = path[:2], path[2:]
    if isinstance(which, jax.tree_util.SequenceKey) and which.idx == 0:
        assert isinstance(given, jax.tree_util.SequenceKey)
        own = parameters[given.idx] if given.idx < len(parameters) else f"args[{given.idx}]"
    else:
        own = str(getattr(given, "key", given))
    return own + jax.tree_util.keystr(tuple(rest))
