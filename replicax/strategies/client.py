"""A strategy whose workers are elsewhere: it computes nothing here, and sends functions and models there."""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn, ParamSpec, TypeVar, cast

import jax
import numpy as np

from replicax.checks import environment_names
from replicax.checks.environment_names import CLIENT
from replicax.cluster import ClusterResolver, ClusterSpec
from replicax.compat.keras_backend import keras_is_loaded
from replicax.contracts.called_as import called_as
from replicax.contracts.reduce_op import ReduceOp
from replicax.contracts.variable_access import VariableLike
from replicax.data import DistributedDataset, InputContext, InputOptions, ValueContext
from replicax.errors import ArgumentError, ContextError
from replicax.job.processes.call import Call, pickled, unpickled
from replicax.runtime.devices import default_devices
from replicax.runtime.ending import only_here
from replicax.strategies.base import Strategy
from replicax.typing import PyTree, PyTreeFunction

if TYPE_CHECKING:
    import keras

    from replicax.keras.remote_loops import RemoteLoops

_P = ParamSpec("_P")
_R = TypeVar("_R")

#: Where a client's workers are: addresses of servers, a resolver of them, or the address of a Ray cluster.
RemoteCluster = ClusterSpec | ClusterResolver | Mapping[str, Sequence[str] | Mapping[int, str]] | str

# Settings that determine numbers, and belong to the script and not to the machine.
_TRAVELLING = (
    "JAX_DEFAULT_DTYPE_BITS",
    "JAX_DEFAULT_MATMUL_PRECISION",
    "JAX_DEFAULT_PRNG_IMPL",
    "JAX_ENABLE_X64",
    "JAX_NUMPY_DTYPE_PROMOTION",
    "JAX_NUMPY_RANK_PROMOTION",
    "JAX_NUM_CPU_DEVICES",
    "JAX_THREEFRY_PARTITIONABLE",
    "PYTHONHASHSEED",
    environment_names.STALL_TIMEOUT,
)


def runs_for_a_client() -> bool:
    """Returns whether this process is a worker that runs for a client elsewhere."""
    return bool(os.environ.get(CLIENT))


class WithoutReplicas(Strategy):
    """The methods of a strategy that need replicas, where there are none: each raises an error that says what to do."""

    workers: tuple[str, ...]  # their names

    def _run(
        self, fn: PyTreeFunction, args: tuple[PyTree, ...], kwargs: dict[str, PyTree], donate: tuple[int, ...]
    ) -> PyTree:
        self._refuse("strategy.run")

    def _update(
        self, variable: VariableLike, fn: PyTreeFunction, args: tuple[PyTree, ...], kwargs: dict[str, PyTree]
    ) -> PyTree:
        self._refuse("strategy.update")

    @called_as("tf.distribute.Strategy.reduce")
    def reduce(  # type: ignore[override]  # called_as takes TensorFlow's keyword
        self, op: ReduceOp | str, value: PyTree, axis: int | Sequence[int] | None = None
    ) -> NoReturn:
        """Refuses: there is nothing to reduce here."""
        self._refuse("strategy.reduce")

    def gather(self, value: PyTree, axis: int = 0) -> NoReturn:
        """Refuses: there is nothing to gather here."""
        self._refuse("strategy.gather")

    def local_results(self, value: PyTree) -> NoReturn:
        """Refuses: there are no replicas here."""
        self._refuse("strategy.local_results")

    def replicate(self, tree: PyTree) -> NoReturn:
        """Refuses: the devices are elsewhere."""
        self._refuse("strategy.replicate")

    def distribute_dataset(
        self, dataset: PyTree, options: InputOptions | None = None, *, batch_size: int | None = None
    ) -> NoReturn:
        """Refuses: the devices are elsewhere."""
        self._refuse("strategy.distribute_dataset")

    def distribute_datasets_from_function(
        self, dataset_fn: Callable[[InputContext], PyTree], options: InputOptions | None = None
    ) -> NoReturn:
        """Refuses: the devices are elsewhere."""
        self._refuse("strategy.distribute_datasets_from_function")

    def _dataset_of_report(
        self, dataset: PyTree, options: InputOptions | None, batch_size: int | None
    ) -> DistributedDataset:
        self._refuse("strategy.shard_report")

    def distribute_values_from_function(self, value_fn: Callable[[ValueContext], PyTree]) -> NoReturn:
        """Refuses: there are no replicas here."""
        self._refuse("strategy.distribute_values_from_function")

    def creates(self, variable: VariableLike, initializer: Callable[..., jax.Array]) -> bool:
        """Leaves it to Keras: variables are in this process between calls."""
        del variable, initializer
        return False

    def _refuse(self, call: str) -> NoReturn:
        raise ContextError(
            f"{call} was called on the client, which has no replicas: they are on {', '.join(self.workers)}. Put the "
            "code into a function and call strategy.remote(fn, ...): there the strategy is the worker's own. "
            "Model.fit, evaluate and predict can be called here."
        )


class ClientMethods(WithoutReplicas):
    """The methods of a strategy on a client: those that compute with replicas raise an error that says what to do."""

    mesh = None
    is_client = True

    def __init__(
        self,
        remote_cluster: RemoteCluster,
        workers: int | None,  # how many, where `remote_cluster` is the address of a Ray cluster
        devices: int | None,  # virtual CPU devices in each worker; None leaves that to the environment
        start_timeout: float,  # for servers, places and actors, in seconds
        own: tuple[Callable[..., Strategy], tuple[object, ...]],  # makes a worker's strategy there; can be pickled
    ):
        # A strategy that is no client loads neither.
        from replicax.job.elsewhere.session import Session
        from replicax.ray_cluster.workers import connect_workers

        self._own, self._was_sent, self._replicas = own, False, 0
        self.cluster_resolver = remote_cluster if isinstance(remote_cluster, ClusterResolver) else None
        address = remote_cluster if isinstance(remote_cluster, str) else None
        environment = {name: os.environ[name] for name in _TRAVELLING if name in os.environ}
        environment[CLIENT] = str(os.getpid())
        spec = _spec(remote_cluster)
        with _random_kept():
            cluster = connect_workers(spec, address=address, workers=workers, start_timeout=start_timeout)
            self.session = Session(cluster, start_timeout=start_timeout, environment=environment, devices=devices)
        self.workers = tuple(str(place.task) for place in cluster.places)
        self._at_exit = only_here(self.session.close)
        atexit.register(self._at_exit)  # This must run before the connection ends.

    # On the workers.

    def remote(self, fn: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
        """Runs a function on every worker; see `MultiWorkerMirroredStrategy.remote`."""
        return cast("_R", self._results(fn, args, kwargs, everyone=False)[0])

    def remote_all(self, fn: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> tuple[_R, ...]:
        """Like `remote`, and returns the results of all workers, in their order."""
        return cast("tuple[_R, ...]", self._results(fn, args, kwargs, everyone=True))

    def _results(
        self, fn: object, args: tuple[object, ...], kwargs: Mapping[str, object], everyone: bool
    ) -> tuple[object, ...]:
        call = self._call(fn, args, kwargs)
        with _random_kept():
            return self.session.call(call, everyone)

    def _call(self, fn: object, args: tuple[object, ...], kwargs: Mapping[str, object]) -> Call:
        if not callable(fn):
            raise ArgumentError(f"strategy.remote takes a function and its arguments, got {fn!r:.100}.")
        call = Call(fn, args, kwargs)
        self._was_sent = False
        sent = pickled(call)
        # A model of this strategy belongs to the worker's own strategy there.
        return Call(_in_scope_of, (self, sent, keras_is_loaded())) if self._was_sent else Call(_called, (sent,))

    def keras_loops(self, model: keras.Model) -> RemoteLoops:
        """Returns what runs the loops of a Keras model on the workers: `fit` and the like."""
        from replicax.keras.remote_loops import RemoteLoops

        return RemoteLoops(model, self)

    def __reduce__(self) -> tuple[Callable[..., Strategy], tuple[object, ...]]:
        # A worker has its own strategy in the place of this one.
        self._was_sent = True
        return self._own

    def close(self) -> None:
        """Ends what runs on the workers and gives the cluster back; the servers go on. A second call does nothing."""
        atexit.unregister(self._at_exit)
        self.session.close()

    # Known here.

    @property
    def num_workers(self) -> int:
        return len(self.workers)

    @property
    def devices(self) -> tuple[jax.Device, ...]:
        """The device of this process on which variables are between calls."""
        return tuple(default_devices()[:1])

    @property
    def num_replicas_in_sync(self) -> int:
        """Number of replicas on all workers together; the first time, they are asked."""
        if not self._replicas:
            self._replicas = self.remote(_replicas_of, self)
        return self._replicas

    def _facts(self) -> dict[str, object]:
        return {"client of": ", ".join(self.workers)}

    def __repr__(self) -> str:
        return f"MultiWorkerMirroredStrategy(client of {', '.join(self.workers)})"


@contextlib.contextmanager
def _random_kept() -> Iterator[None]:
    """Keeps the global generators of Python and NumPy as they are: Ray draws from them."""
    pythons, numpys = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(pythons)
        np.random.set_state(numpys)


def _spec(remote_cluster: object) -> ClusterSpec | None:
    if isinstance(remote_cluster, ClusterResolver):
        return remote_cluster.cluster_spec()
    if isinstance(remote_cluster, str):
        return None
    if isinstance(remote_cluster, (ClusterSpec, Mapping)):
        return ClusterSpec(remote_cluster, "remote_cluster")
    if isinstance(remote_cluster, Iterable):
        return ClusterSpec({"worker": list(remote_cluster)}, "remote_cluster")
    raise ArgumentError(
        f'`remote_cluster` is a dict such as {{"worker": ["host1:2222"]}}, a ClusterSpec, a ClusterResolver, or the '
        f"address of a Ray cluster, got {remote_cluster!r:.100}."
    )


# On a worker.


def _in_scope_of(strategy: Strategy, sent: bytes, has_keras: bool) -> object:
    if has_keras:
        importlib.import_module("keras")  # The scope tells Keras whose a model is, if it is there.
    with strategy.scope():  # Keras objects in the call are made in it.
        call = unpickled(sent)
    return call.function(*call.args, **call.kwargs)


def _called(sent: bytes) -> object:
    call = unpickled(sent)
    return call.function(*call.args, **call.kwargs)


def _replicas_of(strategy: Strategy) -> int:
    return strategy.num_replicas_in_sync
