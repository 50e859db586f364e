"""Ray in this process, and a cluster of it: all of asynchronous training without another process."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor, wait
from typing import Any

import ray
import ray.cloudpickle

import replicax.parameter_server.strategy as strategy_module
from replicax.parameter_server import ParameterServerStrategy
from replicax.parameter_server.actors.worker import RemoteWorker

_numbers = itertools.count()
_actors: dict[int, _Actor] = {}
_own = threading.local()  # in an actor's thread: the actor


def _copied(value: Any) -> Any:
    """What arrives in another process."""
    return ray.cloudpickle.loads(ray.cloudpickle.dumps(value))


class Ref:
    """What a call of an actor gives, like `ray.ObjectRef`."""

    def __init__(self, future: Future[Any]):
        self._future = future

    def future(self) -> Future[Any]:
        return self._future

    def __reduce__(self) -> Any:
        return _put, (self._future.result(),)


def _put(value: Any) -> Ref:
    future: Future[Any] = Future()
    future.set_result(_copied(value))
    return Ref(future)


class _Actor:
    """An object whose methods run in threads of its own; arguments and results are copied."""

    def __init__(self, cls: type, args: tuple[Any, ...], concurrency: int, groups: dict[str, int]):
        self.number, self.cls, self.args = next(_numbers), cls, args
        self.is_dead = False
        self._threads = ThreadPoolExecutor(concurrency, f"actor-{self.number}")
        self._groups = {
            name: ThreadPoolExecutor(threads, f"actor-{self.number}-{name}") for name, threads in groups.items()
        }
        self._pending: set[Future[Any]] = set()
        self._lock = threading.Lock()
        _actors[self.number] = self
        made = self._threads.submit(cls, *_copied(args))
        self._self = made

    def call(self, method: str, args: tuple[Any, ...], group: str | None = None) -> Ref:
        result: Future[Any] = Future()
        with self._lock:
            if self.is_dead:
                result.set_exception(ray.exceptions.ActorDiedError())
                return Ref(result)
            self._pending.add(result)
            args = _copied(args)
            threads = self._threads if group is None else self._groups[group]
            threads.submit(self._run, method, args, result)
        return Ref(result)

    def _run(self, method: str, args: tuple[Any, ...], result: Future[Any]) -> None:
        _own.actor = self
        try:
            args = [arg.future().result() if isinstance(arg, Ref) else arg for arg in args]
            value = _copied(getattr(self._self.result(), method)(*args))
        except BaseException as error:
            failed = ray.exceptions.RayTaskError(method, repr(error), error)
            self._settle(result, lambda: result.set_exception(failed.as_instanceof_cause()))
        else:
            self._settle(result, lambda: result.set_result(value))

    def _settle(self, result: Future[Any], settle: Callable[[], None]) -> None:
        with self._lock:
            self._pending.discard(result)
        with contextlib.suppress(InvalidStateError):  # The actor was killed meanwhile.
            settle()

    def kill(self) -> None:
        with self._lock:
            self.is_dead = True
            pending, self._pending = self._pending, set()
        for result in pending:
            with contextlib.suppress(InvalidStateError):
                result.set_exception(ray.exceptions.ActorDiedError())

    def end(self) -> None:
        self.kill()
        for threads in (self._threads, *self._groups.values()):
            threads.shutdown(cancel_futures=True)


def kill_worker(index: int) -> None:
    """Kills the worker's actor of the newest life."""
    [*_, last] = [actor for actor in list(_actors.values()) if actor.cls is RemoteWorker and actor.args[0] == index]
    last.kill()


class Handle:
    """What others have of an actor."""

    def __init__(self, number: int):
        self.number = number

    @property
    def actor(self) -> _Actor:
        return _actors[self.number]

    def __getattr__(self, method: str) -> Any:
        if method.startswith("_"):
            raise AttributeError(method)
        return _Method(self, method)

    def __reduce__(self) -> Any:
        return Handle, (self.number,)


class _Method:
    def __init__(self, handle: Handle, name: str, group: str | None = None):
        self._handle, self._name, self._group = handle, name, group

    def options(self, concurrency_group: str) -> _Method:
        return _Method(self._handle, self._name, concurrency_group)

    def remote(self, *args: Any) -> Ref:
        return self._handle.actor.call(self._name, args, self._group)


def _remote(cls: type | None = None, *, concurrency_groups: dict[str, int] | None = None) -> Any:
    groups = concurrency_groups or {}
    return _Class(cls, groups) if cls is not None else lambda cls: _Class(cls, groups)


class _Class:
    """An actor class, like what `ray.remote` returns."""

    def __init__(self, cls: type, groups: dict[str, int], **options: Any):
        self._cls, self._groups, self._options = cls, groups, options

    def options(self, **options: Any) -> _Class:
        return _Class(self._cls, self._groups, **options)

    def remote(self, *args: Any) -> Handle:
        return Handle(_Actor(self._cls, args, self._options.get("max_concurrency", 1), self._groups).number)


class _Runtime:
    def get_node_id(self) -> str:
        return str(_own.actor.number)


def _get(refs: Any, timeout: float | None = None) -> Any:
    if isinstance(refs, Ref):
        try:
            return refs.future().result(timeout)
        except TimeoutError:
            raise ray.exceptions.GetTimeoutError from None
    return [_get(ref, timeout) for ref in refs]


def _wait(refs: list[Ref], num_returns: int, timeout: float) -> tuple[list[Ref], list[Ref]]:
    wait([ref.future() for ref in refs], timeout)
    done = [ref for ref in refs if ref.future().done()]
    return done, [ref for ref in refs if ref not in done]


class FakeCluster:
    """A cluster of actors in this process."""

    is_local, head = True, None

    def __init__(self, workers: int, servers: int):
        self.workers, self.servers, self.resolver = workers, servers, None

    def actor_options(self, job: str, index: int) -> dict[str, Any]:
        del job, index
        return {}

    def end_process(self, node_id: str, pid: int) -> None:
        del pid
        _actors[int(node_id)].kill()

    def close(self) -> None: ...


@contextlib.contextmanager
def fake_ray(monkeypatch: Any) -> Iterator[None]:
    """Lets actors live in this process; they end with the block."""
    fakes = {
        "remote": _remote, "get": _get, "put": _put, "wait": _wait, "kill": lambda handle: handle.actor.kill(),
        "get_runtime_context": _Runtime,
    }  # fmt: skip
    for name, fake in fakes.items():
        monkeypatch.setattr(ray, name, fake)
    monkeypatch.setattr(
        strategy_module, "connect", lambda resolver, workers, servers, **_: FakeCluster(workers, servers or 1)
    )
    before = set(_actors)
    try:
        yield
    finally:
        for number in _actors.keys() - before:
            _actors.pop(number).end()


def make_actor(cls: type, *args: Any) -> Handle:
    """Starts an actor by hand."""
    return _Class(cls, {}).remote(*args)


@contextlib.contextmanager
def strategy_of(workers: int = 1, servers: int = 1, **options: Any) -> Iterator[ParameterServerStrategy]:
    """Returns a strategy, closed at the end; `fake_ray` must be there."""
    strategy = ParameterServerStrategy(workers=workers, servers=servers, **options)
    try:
        yield strategy
    finally:
        strategy.close()
