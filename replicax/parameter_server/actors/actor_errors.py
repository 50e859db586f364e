"""Sends errors of workers and servers to the coordinator, where they have the type with which they were raised."""

from __future__ import annotations

import dataclasses
import traceback

from replicax.errors import ContextError, RemoteError


@dataclasses.dataclass(frozen=True)
class Raised:
    """An actor's answer in place of an error, which Ray would wrap in a class of its own."""

    pickled: bytes | None  # the error and its cause; None if they cannot be pickled
    name: str
    words: str  # the error and its traceback

    def error(self) -> BaseException:
        """Returns the error; the actor's traceback is its cause, or the cause of its cause."""
        found = _unpickled(self.pickled) if self.pickled is not None else None
        if found is None:
            return RemoteError(self.name, self.words)
        error, cause = found
        error.__cause__ = cause
        (cause or error).__cause__ = RemoteError(self.name, self.words)
        return error


def raised(error: BaseException) -> Raised:
    """Returns an error as a message."""
    import ray

    words = "".join(traceback.format_exception(error))
    if isinstance(error, ray.exceptions.RayTaskError):
        error = own_error(error)
    return Raised(_pickled(error), type(error).__name__, words)


def closed() -> ContextError:
    """Returns the error for a call after `close`, for which Ray would start another cluster."""
    return ContextError(
        "This ParameterServerStrategy is closed: its workers and servers have ended, and its variables have no values "
        "any more. Close it after the last use, or make a new one and restore a checkpoint."
    )


def own_error(error: BaseException) -> BaseException:
    """Returns the error that an actor's method raised, out of the one in which Ray wraps it."""
    import ray

    if not isinstance(error, ray.exceptions.RayTaskError):
        return error
    cause = error.cause
    if not isinstance(cause, BaseException) or isinstance(cause, ray.exceptions.RayError):
        return RemoteError("an error", str(error))
    cause.__cause__ = RemoteError(type(cause).__name__, str(error))
    return cause


def is_actor_lost(error: BaseException) -> bool:
    """Returns whether a call failed because its actor or node is gone, not because its method raised."""
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
