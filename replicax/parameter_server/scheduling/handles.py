"""Types for Ray's handles of workers and servers: Ray's own type knows no methods."""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar, cast

import jax
import numpy as np

from replicax.parameter_server.actors.actor_errors import Raised
from replicax.parameter_server.actors.messages import Done, Reply, Report, ServerLost, UnexpectedBatch

if TYPE_CHECKING:
    from ray.actor import ActorHandle

T = TypeVar("T")
WorkerAnswer: TypeAlias = Done | UnexpectedBatch | ServerLost | Raised
ServerIdentity: TypeAlias = tuple[str, int]  # the Ray node and the process
#: The structure of a pytree of arrays, and their shapes and dtypes.
RemoteStructure: TypeAlias = tuple[jax.tree_util.PyTreeDef, tuple[tuple[tuple[int, ...], np.dtype], ...]]


class RemoteAnswer(Protocol[T]):
    """A reference to what an actor will answer: `ray.ObjectRef`."""

    def future(self) -> Future[T]:
        """Returns it as a future."""


class RemoteMethod(Protocol[T]):
    """A method of an actor."""

    def remote(self, *args: object) -> RemoteAnswer[T]:
        """Sends a call."""

    def options(self, *, concurrency_group: str) -> RemoteMethod[T]:
        """Returns the method to be run by a group of the actor's threads."""


class WorkerHandle(Protocol):
    """A handle of a `RemoteWorker`; its methods say what the calls mean."""

    run: RemoteMethod[WorkerAnswer]
    set_up: RemoteMethod[None]
    report: RemoteMethod[Report]
    structure: RemoteMethod[RemoteStructure | Raised]
    resource: RemoteMethod[list[np.ndarray] | Raised]


class ServerHandle(Protocol):
    """A handle of a `ParameterServer`; its methods say what the calls mean."""

    identity: RemoteMethod[ServerIdentity]
    load: RemoteMethod[None]
    drop: RemoteMethod[None]
    begin_era: RemoteMethod[None]
    put: RemoteMethod[int]
    get: RemoteMethod[Reply]


def ray_handle(handle: WorkerHandle | ServerHandle) -> ActorHandle:
    """Returns the handle as Ray types it."""
    return cast("ActorHandle", handle)
