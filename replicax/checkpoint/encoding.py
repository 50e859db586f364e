"""States as JSON: numbers, random generators, and objects that say their state themselves. No pickle."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from replicax.errors import CheckpointError

VALUES = (bool, int, float, str, bytes)


def has_state(value: Any) -> bool:
    """Returns whether an object has a state to save and restore: a NumPy generator, or by its methods."""
    if isinstance(value, (np.random.Generator, np.random.RandomState)):
        return True
    if isinstance(value, type):
        return False
    return callable(getattr(value, "get_state", None)) and callable(getattr(value, "set_state", None))


def saved_state(name: str, value: Any) -> Any:
    """Returns the state of a value or object in a form that JSON can hold.

    Raises:
        CheckpointError: JSON cannot hold it.
    """
    encoded = _encoded(name, _state(value))
    return {"value": encoded} if isinstance(value, VALUES) else {"state": encoded}


def restored_state(name: str, states: Sequence[Mapping[str, Any]], process: int, processes: int) -> Any:
    """Returns the state that process `process` of `processes` gets.

    Numbers are the chief's. States of objects may differ between processes: with as many processes as wrote them each
    gets its own, with others they must all be equal.

    Args:
        name: Name of the part.
        states: What each of the processes wrote.
        process: Number of this process.
        processes: Number of processes now.

    Raises:
        CheckpointError: The states differ, and there are more or fewer processes than there were; or there is none.
    """
    found = [_part(name, state) for state in states]
    if len({kind for kind, _ in found}) > 1:
        raise CheckpointError(f"{name!r} is a value in the checkpoint of one process, and an object in another's.")
    if found[0][0] == "value":
        return _decoded_part(name, found[0][1])
    if len(found) == processes:
        return _decoded_part(name, found[process][1])
    if any(state != found[0] for state in found):
        raise CheckpointError(
            f"The state of {name!r} differs between the {len(found)} processes that wrote it, so it cannot be given to "
            f"{processes}. Restore with {len(found)} processes, or use an object whose state is the same in all."
        )
    return _decoded_part(name, found[0][1])


def _part(name: str, state: Mapping[str, Any]) -> tuple[str, Any]:
    """Returns the kind of a part in the state of a process, "value" or "state", and what is encoded of it."""
    part = state.get(name)
    if not isinstance(part, Mapping) or part.keys() not in ({"value"}, {"state"}):
        raise CheckpointError(f"The checkpoint has no state of {name!r} that can be read, but {part!r:.100}.")
    ((kind, encoded),) = part.items()
    return kind, encoded


def set_state(target: Any, state: Any) -> None:
    """Gives an object a state that it had."""
    if isinstance(target, np.random.Generator):
        target.bit_generator.state = state
    else:
        target.set_state(state)


def current_state(target: Any) -> Any:
    """Returns an object's state, as `set_state` takes it."""
    return _state(target)


def _state(value: Any) -> Any:
    if isinstance(value, VALUES):
        return value
    if isinstance(value, np.random.Generator):
        return value.bit_generator.state
    if isinstance(value, np.random.RandomState):
        return value.get_state(legacy=False)
    return value.get_state()


def _encoded(name: str, value: Any) -> Any:
    if isinstance(value, bytes):
        return {"__bytes__": base64.b64encode(value).decode("ascii")}
    if isinstance(value, (np.ndarray, np.generic)) and not np.dtype(value.dtype).hasobject:
        return {"__array__": np.asarray(value).tolist(), "dtype": np.asarray(value).dtype.str}
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _encoded(name, child) for key, child in value.items()}
    if isinstance(value, (list, tuple)):
        return [_encoded(name, child) for child in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise CheckpointError(
        f"The state of {name!r} has in it {value!r:.100}, which JSON cannot hold. `get_state` returns bytes, or dicts "
        "with strings as keys, lists, numbers, strings and arrays."
    )


def _decoded_part(name: str, value: Any) -> Any:
    try:
        return _decoded(value)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise CheckpointError(f"The state of {name!r} in the checkpoint cannot be read: {error}") from error


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return [_decoded(child) for child in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"__bytes__"}:
        return base64.b64decode(value["__bytes__"])
    if value.keys() == {"__array__", "dtype"}:
        dtype = np.dtype(value["dtype"])
        if dtype.hasobject:
            raise ValueError(f"an array of Python objects, dtype {dtype}")
        return np.asarray(value["__array__"], dtype)
    return {key: _decoded(child) for key, child in value.items()}
