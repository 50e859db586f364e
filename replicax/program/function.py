"""`rx.function`: a Python function over variables, compiled once per argument signature."""

from __future__ import annotations

import collections
import functools
import inspect
import operator
import threading
import weakref
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Concatenate, Generic, ParamSpec, TypeVar, overload

import jax
import numpy as np

import replicax.context as context
from replicax.contracts.advice import Advised
from replicax.contracts.called_as import called_as
from replicax.contracts.group import current_group
from replicax.contracts.variable_access import VariableLike
from replicax.errors import ArgumentError, ProgramError
from replicax.program.call_checks import check_function
from replicax.program.capture_changes import Change
from replicax.program.global_view import GlobalView
from replicax.program.hints.advice import advise_of_changed_object, advise_of_parted
from replicax.program.host_arguments import argument_name, parameters_of
from replicax.program.input_signature import InputSignature
from replicax.program.lifting import Program
from replicax.program.pytrees import Structure, flatten_inputs, per_replica_arrays
from replicax.typing import Leaf, PyTree, PyTreeFunction
from replicax.values.containers import is_same_setting
from replicax.values.tracebacks import entry_point

_P = ParamSpec("_P")
_Q = ParamSpec("_Q")
_T = TypeVar("_T")
_Cache = TypeVar("_Cache")
#: How many programs are kept for what a step has found in earlier calls: it may be a flag that changes back and forth.
_KEPT = 3
#: JAX's settings by which a function is traced: as under `jax.jit`, another value makes another program.
_SETTINGS = operator.attrgetter(
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_threefry_partitionable",
    "jax_numpy_dtype_promotion",
    "jax_numpy_rank_promotion",
)


class ProgramCache:
    """The compiled signatures of one function."""

    def __init__(
        self,
        get_fn: Callable[[], PyTreeFunction],
        donate_argnums: Iterable[int] = (),
        view: GlobalView | None = None,
        get_users: Callable[[], PyTreeFunction] | None = None,
    ):
        self._get_fn, self._view, self._get_users = get_fn, view, get_users
        self._changes: collections.Counter[str] = collections.Counter()
        # By what a replica gets of each array: which arrays had a component for each replica when that came first.
        self._stacked: dict[Hashable, list[bool]] = {}
        self._donate_argnums = frozenset(donate_argnums)
        self._programs: dict[Hashable, list[Program]] = {}
        self._lock = threading.Lock()
        self._world = 0

    def __call__(self, args: tuple[PyTree, ...], kwargs: dict[str, PyTree]) -> PyTree:
        """Runs the function compiled for these arguments, compiling it first if they are of a new kind."""
        group = current_group()

        def call() -> PyTree:
            if self._world != group.number:  # Each world has programs, and shares of a batch, of its own.
                self._programs.clear()
                self._world = group.number
            program, arrays = self.program(*group.renewed((args, kwargs)))
            return program(arrays)

        return group.attempt(call)

    def program(self, args: tuple[PyTree, ...], kwargs: dict[str, PyTree]) -> tuple[Program, list[jax.Array]]:
        """Returns the program for these arguments, traced if they are of a new kind, and its array arguments."""
        arrays, structure = flatten_inputs((args, kwargs))
        key = id(context.current().strategy), _SETTINGS(jax.config), signature(arrays, structure)
        program = self._found(key, arrays, structure)
        if program is None:
            with self._lock:
                program = self._found(key, arrays, structure)
                if program is None:
                    program = self._compile(key, args, kwargs, arrays, structure)
        return program, arrays

    def _found(self, key: Hashable, arrays: list[jax.Array], structure: Structure) -> Program | None:
        for program in self._programs.get(key, ()):
            if program.changed(structure) is None and program.fits(arrays):
                return program
        return None

    def _compile(
        self, key: Hashable, args: PyTree, kwargs: PyTree, arrays: list[jax.Array], structure: Structure
    ) -> Program:
        """Makes a program; where things have changed of which that is not known, finds out if it is an earlier one."""
        outdated = [(each, change) for each in self._programs.get(key, ()) if (change := each.changed(structure))]
        for each, _ in outdated:
            each.renew_conversions()
        doubted = [(each, change) for each, change in outdated if change.perhaps and each.fits(arrays)]
        program = self._traced(args, kwargs, arrays, structure, doubted[::-1])
        if program.replaced is None and outdated:
            self._drop_outdated(key, outdated)
        kept = [each for each in self._programs.get(key, ()) if each is not program.replaced]
        self._programs[key] = [*kept, program]
        return program

    def _drop_outdated(self, key: Hashable, outdated: list[tuple[Program, Change]]) -> None:
        """Drops all but the newest programs of what has changed since; says so when the same changes again."""
        last, change = outdated[-1]
        self._changes[change.where] += 1
        if self._changes[change.where] > 1:
            advise_of_changed_object(last.strategy, getattr(self._get_fn(), "__name__", "step"), change.where)
        dropped = {id(each) for each, _ in outdated[:-_KEPT]}
        self._programs[key] = [each for each in self._programs[key] if id(each) not in dropped]

    def _traced(
        self,
        args: PyTree,
        kwargs: PyTree,
        arrays: list[jax.Array],
        structure: Structure,
        earlier: Sequence[tuple[Program, Change]],
    ) -> Program:
        stacked, replicas = per_replica_arrays((args, kwargs))
        self._look_at_state(stacked, arrays, structure)
        donate = [False] * len(arrays)
        if self._donate_argnums:
            donate = _donated(args, kwargs, self._donate_argnums)
        return Program(self._get_fn, structure, arrays, donate, replicas, self._view, self._get_users, earlier)

    def _look_at_state(
        self, stacked: Sequence[bool], arrays: Sequence[jax.Array | np.ndarray], structure: Structure
    ) -> None:
        """Says that what was one value for all replicas has become a value of each replica's own, as a state may."""
        kinds = tuple((np.shape(x)[each:], getattr(x, "dtype", None)) for x, each in zip(arrays, stacked, strict=True))
        before = self._stacked.setdefault(kinds, list(stacked))
        parted = [
            i
            for i, (_, dtype) in enumerate(kinds)
            if stacked[i] and not before[i] and dtype is not None and jax.numpy.issubdtype(dtype, np.floating)
        ]
        if parted:
            fn, paths = (self._get_users or self._get_fn)(), structure.paths()
            names = [argument_name(paths[i][:-1], parameters_of(fn)) for i in parted]  # without the stack's own key
            advise_of_parted(context.current().strategy, getattr(fn, "__name__", "step"), names)

    def __len__(self) -> int:
        return sum(map(len, self._programs.values()))


def signature(arrays: Sequence[jax.Array | np.ndarray], structure: Structure) -> Hashable:
    """Returns what a program is specialised to: calls with the same signature share one."""
    kinds = tuple(map(_kind, arrays))
    if not structure.static:
        return structure.treedef, kinds
    return structure.treedef, kinds, tuple((i, _Static(leaf)) for i, leaf in structure.static)


class _Static:
    """An argument that is no array, as part of a key: by value where it has one, otherwise by identity."""

    __slots__ = ("_hash", "_leaf")

    def __init__(self, leaf: Leaf):
        self._leaf = leaf
        try:
            self._hash = hash((type(leaf), leaf))
        except TypeError:
            self._hash = id(leaf)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Static) or type(self._leaf) is not type(other._leaf):
            return False
        if self._leaf is other._leaf:
            return True
        try:
            hash(self._leaf)
        except TypeError:
            return False
        return is_same_setting(self._leaf, other._leaf)


def _kind(array: jax.Array | np.ndarray) -> Hashable:
    """Returns what a program is specialised to: shape, dtype and weakness; for a Python number, its type."""
    if isinstance(array, jax.Array):
        return array.shape, array.dtype, getattr(array, "weak_type", False)  # those of random keys have none
    if isinstance(array, np.ndarray):
        return array.shape, array.dtype
    return type(array)


def _positions(donate_argnums: int | Iterable[int]) -> tuple[int, ...]:
    """Returns positions of arguments as a tuple; one alone may be given by itself, as to `jax.jit`."""
    given = (donate_argnums,) if isinstance(donate_argnums, int) else donate_argnums
    positions = tuple(given) if isinstance(given, Iterable) else (None,)
    if not all(isinstance(each, int) and each >= 0 for each in positions):
        raise ArgumentError(
            f"donate_argnums are positions of arguments from 0, such as (0,), got {donate_argnums!r:.100}."
        )
    return positions


def _donated(args: Sequence[PyTree], kwargs: PyTree, argnums: frozenset[int]) -> list[bool]:
    flags: list[bool] = []
    for i, arg in enumerate(args):
        arrays, _ = flatten_inputs(arg)
        flags += [i in argnums] * len(arrays)
    arrays, _ = flatten_inputs(kwargs)
    return flags + [False] * len(arrays)


class Function(Advised, Generic[_P, _T]):
    """A function that `rx.function` has wrapped; call it like the original.

    Attributes:
        python_function: The original.
    """

    def __init__(
        self,
        fn: Callable[_P, _T],
        donate_argnums: Sequence[int] = (),
        input_signature: InputSignature | None = None,
    ):
        check_function("What rx.function wraps", fn)
        # The attributes of an object that can be called (a Keras model) stay its own.
        functools.update_wrapper(self, fn, updated=("__dict__",) if inspect.isroutine(fn) else ())
        self.python_function = fn
        self._donate_argnums = _positions(donate_argnums)
        self._signature = input_signature
        self._cache = ProgramCache(lambda: fn, self._donate_argnums)
        self._bound: dict[int, tuple[weakref.ref[object], Function[..., PyTree]]] = {}  # by identity

    @entry_point
    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Runs the compiled function; inside another one, and under `rx.config.run_eagerly`, the original."""
        if self._signature is not None:
            args, kwargs = self._signature.bound(args, kwargs), {}  # type: ignore[assignment]  # no longer the user's
        result: _T = self._called(args, kwargs)
        return result

    def _called(self, args: tuple[PyTree, ...], kwargs: dict[str, PyTree]) -> PyTree:
        if context.current().frame is not None or context.runs_eagerly():
            fn: PyTreeFunction = self.python_function
            return fn(*args, **kwargs)
        return self._cache(args, kwargs)

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Function[_P, _T]: ...

    @overload
    def __get__(
        self: Function[Concatenate[PyTree, _Q], _T], instance: object, owner: type | None = None
    ) -> Function[_Q, _T]: ...

    def __get__(self, instance: object | None, owner: type | None = None) -> PyTree:
        """Binds the function to an instance, so that methods can be decorated; each instance has its own programs."""
        if instance is None:
            return self
        key = id(instance)
        if key not in self._bound:
            try:
                reference = weakref.ref(instance, lambda _: self._bound.pop(key, None))
            except TypeError:
                raise ArgumentError(
                    f"rx.function cannot decorate {self.python_function.__qualname__}: objects of "
                    f"{type(instance).__name__} cannot be weakly referenced. Add '__weakref__' to its __slots__."
                ) from None
            unbound: PyTreeFunction = self.python_function

            @functools.wraps(self.python_function)
            def method(*args: PyTree, **kwargs: PyTree) -> PyTree:
                return unbound(reference(), *args, **kwargs)

            argnums, signature = [i - 1 for i in self._donate_argnums if i], self._signature
            self._bound[key] = (reference, Function(method, argnums, signature and signature.of_method(method)))
        return self._bound[key][1]

    @entry_point
    def lower(self, *args: _P.args, **kwargs: _P.kwargs) -> jax.stages.Lowered:
        """Returns the program for these arguments as JAX lowers it, without running it.

        `.compile().as_text()` of the result is the optimised HLO, `.compile().memory_analysis()` its memory.
        """
        program, arrays = self._program(args, kwargs)
        return program.lower(arrays)

    @entry_point
    def build(self, *args: _P.args, **kwargs: _P.kwargs) -> list[VariableLike]:
        """Traces the function for these arguments and runs nothing: the variables that it creates exist then.

        Returns:
            The variables that it reads or assigns.

        Raises:
            ProgramError: It gives variables that it creates their first values itself, which only running it can do.
        """
        program, _ = self._program(args, kwargs)
        _, updated, others = program.parts()
        return [*updated, *others]

    def program(self, *args: _P.args, **kwargs: _P.kwargs) -> tuple[Program, list[jax.Array]]:
        """Returns the traced program for these arguments, and their arrays."""
        return self._program(args, kwargs)

    def _program(self, args: tuple[PyTree, ...], kwargs: dict[str, PyTree]) -> tuple[Program, list[jax.Array]]:
        if self._signature is not None:
            args, kwargs = self._signature.bound(args, kwargs), {}
        return self._cache.program(args, kwargs)

    @property
    def input_signature(self) -> tuple[PyTree, ...] | None:
        """The specs of the arguments, None if it takes any."""
        return None if self._signature is None else self._signature.specs

    @property
    def num_programs(self) -> int:
        """Number of argument signatures compiled so far."""
        return len(self._cache)


@overload
def function(
    fn: Callable[_P, _T],
    *,
    donate_argnums: Sequence[int] = (),
    input_signature: Sequence[PyTree] | None = None,
    **tf_keywords: object,
) -> Function[_P, _T]: ...


@overload
def function(
    fn: None = None,
    *,
    donate_argnums: Sequence[int] = (),
    input_signature: Sequence[PyTree] | None = None,
    **tf_keywords: object,
) -> Callable[[Callable[_P, _T]], Function[_P, _T]]: ...


@called_as("tf.function")
def function(
    fn: PyTreeFunction | None = None,
    *,
    donate_argnums: Sequence[int] = (),
    input_signature: Sequence[PyTree] | None = None,
    **tf_keywords: object,
) -> PyTree:
    """Compiles a function that reads and assigns variables; the `tf.function` of this library.

    The function is traced when it is called with a new kind of arguments: its Python runs then, with abstract values,
    and what it does with arrays is compiled by XLA. Later calls run the compiled program only. Arrays and Python
    numbers are inputs of the program; a new shape or dtype makes a new program. Any other argument (a flag, a string,
    a model, a number in a module of Equinox) is fixed when the program is made; another value makes a new program. So
    is what the function finds outside of its arguments: an array, number or model that has another one in its place at
    a later call makes a new program, with a warning from the second time on.

    Python side effects (`print`, appending to a list) happen while tracing only: once for each kind of arguments. They
    happen once more where the function creates variables (a layer does on its first call), and where a value in
    `strategy.run` turns out to differ between replicas though its type does not show it. `jax.debug.print` prints at
    every call, and `rx.config.run_eagerly(True)` runs the Python itself.

    Args:
        fn: The function. It may call `strategy.run`, other `rx.function`s and anything that JAX can trace. Variables
            (of Keras or `rx.Variable`) that it uses may be created in the first call by layers that do so.
        donate_argnums: Positions of arguments whose buffers the program may reuse for its results; the caller must
            not use them afterwards. Variables are always updated in place.
        input_signature: A list with a pytree of specs (`rx.TensorSpec`) for each argument, which the arguments
            must fit then; a size of None fits any, and each makes a program. Python numbers and NumPy values are
            converted to the dtype. For a per-replica argument the spec is that of a component, as
            `dataset.element_spec` has it.
        tf_keywords: `tf.function`'s other keywords. `jit_compile=True`, `autograph=False` and `reduce_retracing=False`
            mean what happens anyway; anything else is refused with the reason.

    Raises:
        ArgumentError: `fn` cannot be called, or is `async` or a generator, whose body would not run; or a keyword asks
            for what does not exist. When called: an argument does not fit `input_signature`.
        ProgramError: When called: the function creates variables each time it is traced, or assigns a variable where
            JAX cannot see it.

    Example:
        >>> counter = Variable(0)
        >>> @function
        ... def count(step):
        ...     return counter.assign_add(step)
        >>> count(2), count(3), counter.numpy()
        (Array(2, dtype=int32), Array(5, dtype=int32), array(5, dtype=int32))
    """
    for name in tf_keywords:
        raise ArgumentError(f"rx.function has no parameter {name!r} (and neither has tf.function).")
    if fn is None:
        return functools.partial(function, donate_argnums=donate_argnums, input_signature=input_signature)
    return Function(fn, donate_argnums, None if input_signature is None else InputSignature(input_signature, fn))


class WeakProgramCaches(Generic[_Cache]):
    """Program caches for functions that are passed in anew at every call, kept no longer than the functions live."""

    def __init__(self) -> None:
        self._caches: dict[Hashable, tuple[Callable[[], object], _Cache]] = {}

    def get(
        self, fn: PyTreeFunction, variant: Hashable, make: Callable[[Callable[[], PyTreeFunction]], _Cache]
    ) -> _Cache:
        """Returns the cache of `fn` for `variant`, or a new one: `make(get_fn)`; `get_fn` does not keep `fn` alive."""
        of_method = getattr(fn, "__func__", None)
        key = (id(fn), variant) if of_method is None else (id(getattr(fn, "__self__", None)), id(of_method), variant)
        found = self._caches.get(key)
        if found is not None:
            return found[1]
        check_function("`fn`", fn)
        forget = functools.partial(self._forget, weakref.ref(self), key)
        reference: Callable[[], PyTreeFunction | None]
        try:
            reference = weakref.ref(fn, forget) if of_method is None else weakref.WeakMethod(fn, forget)
        except TypeError:  # not everything that can be called can be referred to weakly
            reference = lambda: fn  # noqa: E731
        cache = make(functools.partial(_alive, reference))
        self._caches[key] = (reference, cache)
        return cache

    @staticmethod
    def _forget(caches: weakref.ref[WeakProgramCaches[_Cache]], key: Hashable, _: object) -> None:
        owner = caches()
        if owner is not None:
            owner._caches.pop(key, None)


def _alive(reference: Callable[[], PyTreeFunction | None]) -> PyTreeFunction:
    fn = reference()
    if fn is None:
        raise ProgramError("The function of this program has been deleted.")
    return fn
