"""Errors that workers and servers raise, on their way to the coordinator: there they have the type they had."""

from __future__ import annotations

import dataclasses
import traceback
from typing import Any

from replicax.errors import ContextError, RemoteError


@dataclasses.dataclass(frozen=True)
class Raised:
    """What an actor answers instead of raising an error. Ray would bring an instance of a class that it makes up.

    Attributes:
        pickled: The error and its cause; None if they cannot be pickled.
        name: The error's type.
        words: The error and its traceback, as text.
    """

    pickled: bytes | None
    name: str
    words: str

    def error(self) -> BaseException:
        """Returns the error, with what was said on the other side as the cause of it, or of its cause."""
        found = _unpickled(self.pickled) if self.pickled is not None else None
        if found is None:
            return RemoteError(self.name, self.words)
        error, cause = found
        error.__cause__ = cause
        (cause or error).__cause__ = RemoteError(self.name, self.words)
        return error


def raised(error: BaseException) -> Raised:
    """Returns an error as something that can be sent."""
    import ray

    words = "".join(traceback.format_exception(error))
    if isinstance(error, ray.exceptions.RayTaskError):
        error = own_error(error)
    return Raised(_pickled(error), type(error).__name__, words)


def closed() -> ContextError:
    """Returns the error for a call after the end: Ray would start a cluster of its own for it."""
    return ContextError(
        "This ParameterServerStrategy is closed: its workers and servers have ended, and its variables have no values "
        "any more. Close it after the last use, or make a new one and restore a checkpoint."
    )


def own_error(error: BaseException) -> BaseException:
    """Returns the error that an actor's method raised, instead of what Ray makes of it."""
    import ray

    if not isinstance(error, ray.exceptions.RayTaskError):
        return error
    cause: Any = error.cause
    if not isinstance(cause, BaseException) or isinstance(cause, ray.exceptions.RayError):
        return RemoteError("an error", str(error))
    cause.__cause__ = RemoteError(type(cause).__name__, str(error))
    return cause


def is_actor_lost(error: BaseException) -> bool:
    """Whether a call failed because its actor, or its node, has gone, and not because of what it did."""
    import ray

    return isinstance(error, ray.exceptions.RayError) and not isinstance(error, ray.exceptions.RayTaskError)


def _pickled(error: BaseException) -> bytes | None:
    import ray.cloudpickle

    for cause in (error.__cause__, None):
        try:
            pickled: bytes = ray.cloudpickle.dumps((error, cause))
        except Exception:
            continue  # Anything may be in an exception, and refuse.
        if _unpickled(pickled) is not None:
            return pickled
    return None


def _unpickled(pickled: bytes) -> tuple[BaseException, BaseException | None] | None:
    import ray.cloudpickle

    try:
        error, cause = ray.cloudpickle.loads(pickled)
    except Exception:  # Its class is not here, or cannot be called with its arguments.
        return None
    return (error, cause) if isinstance(error, BaseException) else None
