"""The contract of every strategy, documented once; a strategy fills in the methods whose names start with `_`."""

from __future__ import annotations

import abc
import contextlib
import functools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

import jax

import replicax.context as context
import replicax.contracts.upper_rooms as upper_rooms
from replicax.checks import explain_misfit
from replicax.cluster import ClusterResolver
from replicax.contracts.called_as import called_as
from replicax.contracts.group import current_group
from replicax.contracts.reduce_op import ReduceOp
from replicax.contracts.shown import Shown, html_facts
from replicax.contracts.strategy import StrategyBase
from replicax.contracts.variable_access import VariableLike, is_variable
from replicax.data import (
    DistributedDataset,
    DistributedDatasetFromFunction,
    InputContext,
    InputOptions,
    ValueContext,
)
from replicax.errors import ArgumentError, ContextError, ReduceError
from replicax.keras.strategy_scope import keras_entered
from replicax.program.call_checks import checked_arguments, checked_call
from replicax.program.hints.foreign import check_outside_of_graphs
from replicax.program.replicas.outer_program import noted
from replicax.program.results import COMBINED
from replicax.runtime import turns
from replicax.runtime.devices import device_name
from replicax.strategies.explaining import explain
from replicax.strategies.reductions import (
    Combine,
    Gathering,
    Reduction,
    digest_of_own,
    one_per_replica,
    reduced_plain,
    value_of,
)
from replicax.strategies.scope import Scope
from replicax.typing import Leaf, PyTree, PyTreeFunction
from replicax.values import is_per_replica
from replicax.values.containers import opened
from replicax.values.scattering import check_no_slices
from replicax.values.tracebacks import entry_point

if TYPE_CHECKING:
    import keras

    from replicax.program.function import Function
    from replicax.strategies.replica_digest import PendingDigests, ReplicaDigests

_T = TypeVar("_T")


class Strategy(StrategyBase):
    """Decides on which devices training runs and how the parts are put together.

    Make one, create variables (models, optimizers, metrics) inside `scope()`, split each global batch with
    `distribute_dataset`, run one replica's view of a step on all replicas with `run`, and combine what they return
    with `reduce`. The same program runs under every strategy.

    Attributes:
        devices: The devices, one for each replica.
        mesh: The devices as a mesh with the axis `"replica"`; None for the default strategy, which places nothing.
        placement: Where values live on the mesh.
        cluster_resolver: What tells the strategy who this process is; None for those of one process.
        precision: What layers made in the scope compute in: its `name`, `dtype` and `keras_policy`; None for float32,
            or what Keras's own policy says.

    Example:
        >>> strategy = rx.MirroredStrategy()
        >>> isinstance(strategy, rx.Strategy), strategy.num_replicas_in_sync
        (True, 8)
    """

    mesh: jax.sharding.Mesh | None
    cluster_resolver: ClusterResolver | None = None

    @property
    @abc.abstractmethod
    def num_replicas_in_sync(self) -> int:
        """Number of replicas whose gradients are combined in one step."""

    # Workers.

    @property
    def num_workers(self) -> int:
        """Number of processes that train together; 1 where there are no others."""
        return 1

    @property
    def worker_index(self) -> int:
        """Number of this process among them, from 0."""
        return 0

    @property
    def is_chief(self) -> bool:
        """Whether this process is the one that writes logs and the like; always, where there are no others."""
        return True

    @entry_point
    def barrier(self, name: str = "barrier") -> None:
        """Waits until all workers have called it; in one process it returns at once.

        A worker that does not come ends the job after the strategy's `stall_timeout`, with a report that has the name.
        The barrier is one of processes: what devices still compute is not waited for.

        Args:
            name: A name for messages; all workers must give the same one. It may be used again.

        Raises:
            ArgumentError: The name is not a string.
            ContextError: Called inside `run`, or while another strategy is current.
            WorkersDisagreeError: A worker has come to something else that all do together, such as another barrier.

        Example:
            >>> strategy = rx.MirroredStrategy()
            >>> if strategy.is_chief:
            ...     pass  # prepare the data, which all read
            >>> strategy.barrier("data are prepared")
        """
        if not isinstance(name, str):
            raise ArgumentError(f"`name` is a string, got {name!r:.100}.")
        self._check_cross_replica("strategy.barrier")
        self.placement.group.barrier(name)

    # Replicas.

    @entry_point
    def check_replicas(self, variables: PyTree, step: int | None = None) -> None:
        """Compares the copies of variables on all devices; all workers call it together. It waits for the devices.

        Each device digests its copies, in one program, so it takes about as long as reading them once. Parts that one
        device alone holds have nothing to compare with: all under `OneDeviceStrategy` and `CentralStorageStrategy`,
        most under `FullyShardedStrategy`. In `Model.fit`, use `rx.keras.ReplicaDigest`.

        Args:
            variables: A variable, or a pytree of variables and of arrays that `replicate` has made, such as
                `[*model.variables, *optimizer.variables]`.
            step: The number of the step, for the message.

        Raises:
            ReplicaDriftError: Copies differ. It names the variables and the replicas.
            ArgumentError: `variables` holds something else; or workers of the strategy come and go.
            ContextError: Called inside `run`, or while another strategy is current.

        Example:
            >>> strategy = rx.MirroredStrategy()
            >>> with strategy.scope():
            ...     weight = rx.Variable([1.0, 2.0])
            >>> strategy.check_replicas([weight])
        """
        self._check_cross_replica("strategy.check_replicas")
        for each in self._begin_digests(variables):
            each.check(step)

    def _begin_digests(self, variables: PyTree) -> list[PendingDigests]:
        """Lets the devices digest their copies of variables and arrays; none is a test of the strategy alone."""
        if self.placement.group.may_change:
            raise ArgumentError(
                f"Workers of {self!r} come and go, and each is given the others' values then: their copies cannot be "
                "compared between steps. Leave out ReplicaDigest and check_replicas."
            )
        return self._digests.begun(variables)

    @functools.cached_property
    def _digests(self) -> ReplicaDigests:
        from replicax.strategies.replica_digest import ReplicaDigests

        return ReplicaDigests()

    # Contexts.

    def scope(self) -> Scope[Self]:
        """Makes this strategy the current one: variables created in the `with` block belong to it.

        The block gets the strategy itself (`with MirroredStrategy().scope() as strategy:`). A scope may be opened
        inside a scope of the same strategy.

        Raises:
            ContextError: Another strategy is current, or the call is made inside `run`; the object that this returned
                is used for a second block; or scopes are not closed in the reverse order of their opening.
        """
        return Scope(self, self._in_scope)

    @contextlib.contextmanager
    def _in_scope(self, scope: Scope[Self]) -> Iterator[None]:
        current = context.current()
        if current.replica is not None:
            raise ContextError(
                "scope() was opened inside strategy.run. Open it around the code that creates variables."
            )
        if current.strategy is not None and current.strategy is not self:
            raise ContextError(f"Scopes of two strategies cannot be mixed: {current.strategy!r} is open, got {self!r}.")
        with context.entered(strategy=self, opened_by_set_strategy=None, scope=scope), keras_entered(self):
            yield

    @entry_point
    def cast_to_compute(self, tree: PyTree) -> PyTree:
        """Returns a pytree with its floating-point arrays in the dtype of `precision`; without one, the tree as it is.

        For plain JAX loops: cast parameters and rows at the head of the loss function. The gradient with respect to
        float32 parameters is float32 again, as JAX differentiates the cast. Keras's layers cast by themselves.

        Args:
            tree: Any pytree. Leaves that are no JAX arrays of floating-point numbers stay as they are.

        Example:
            >>> import jax.numpy as jnp
            >>> strategy = rx.MirroredStrategy(precision="bf16")
            >>> strategy.cast_to_compute({"w": jnp.ones(3), "labels": jnp.arange(3)})["w"].dtype
            dtype(bfloat16)
        """
        return tree if self.precision is None else self.precision.cast(tree)

    # Running.

    @overload
    def run(
        self,
        fn: Callable[..., jax.Array],
        args: Sequence[PyTree] = (),
        kwargs: Mapping[str, PyTree] | None = None,
        *,
        donate_argnums: Sequence[int] = (),
    ) -> PyTree: ...  # a PerReplica or an array

    @overload
    def run(
        self,
        fn: Callable[..., _T],
        args: Sequence[PyTree] = (),
        kwargs: Mapping[str, PyTree] | None = None,
        *,
        donate_argnums: Sequence[int] = (),
    ) -> _T: ...

    @entry_point
    @called_as("tf.distribute.Strategy.run")
    def run(
        self,
        fn: PyTreeFunction,
        args: Sequence[PyTree] = (),
        kwargs: Mapping[str, PyTree] | None = None,
        *,
        donate_argnums: Sequence[int] = (),
    ) -> PyTree:
        """Calls `fn` once per replica, compiled into one program that all devices run together.

        Args:
            fn: One replica's view of the work. It may read and assign variables.
            args: Arguments. Of a per-replica value each replica gets its own component; arrays, numbers and variables
                go to every replica as they are.
            kwargs: Keyword arguments, treated alike.
            donate_argnums: Positions in `args` whose buffers may be reused for the results (as in `jax.jit`); the
                caller must not use them afterwards. Without effect inside an `rx.function`, which has its own.

        Returns:
            What `fn` returns, leaf by leaf: arrays that are proven equal on all replicas are mirrored (one array,
            `isinstance(x, rx.Mirrored)`), other arrays are `PerReplica`, and plain Python values come back as they
            are. With one replica every array comes back bare. For `reduce`, `gather` and `local_results` an array
            counts once for each replica that ran, be it mirrored or not.

        Raises:
            ArgumentError: `fn` cannot be called, or is `async` or a generator, whose body would not run; `args` is no
                list or tuple, `kwargs` no dict, or `fn` does not take them; or an argument is an array of something
                else than numbers.
            ContextError: Called inside `run` or a `tf.function`, or while another strategy is current.
            ReplicaShapeError: A per-replica argument has components of different shapes or of another step.
            ReplicaDivergenceError: `fn` assigns a mirrored variable a value that may differ between replicas.
        """
        args, kwargs = (args, {}) if type(args) is tuple and kwargs is None else checked_arguments(args, kwargs)
        if "tensorflow" in sys.modules:
            check_outside_of_graphs()
        self._check_cross_replica("strategy.run")
        try:
            return self._run(fn, args, kwargs, tuple(donate_argnums))
        except TypeError:
            explain_misfit("fn", fn, args, kwargs)
            raise

    @abc.abstractmethod
    def _run(
        self, fn: PyTreeFunction, args: tuple[PyTree, ...], kwargs: dict[str, PyTree], donate: tuple[int, ...]
    ) -> PyTree:
        """Runs `fn`, which is not checked yet, on all replicas."""

    @entry_point
    @called_as("tf.distribute.StrategyExtended.update")
    def update(
        self,
        variable: VariableLike,
        fn: PyTreeFunction,
        args: Sequence[PyTree] = (),
        kwargs: Mapping[str, PyTree] | None = None,
        *,
        group: bool = True,
    ) -> PyTree:
        """Calls `fn(variable, *args, **kwargs)` for each copy of a variable, where that copy lives.

        Inside `fn` the context is cross-replica, the variable is one copy, and per-replica arguments are components.

        Args:
            variable: The variable to change.
            fn: Changes its first argument, for example `lambda v, x: v.assign_add(x)`.
            args: Further arguments.
            kwargs: Keyword arguments.
            group: Whether to return one value for all copies; otherwise a tuple of each copy's result.

        Raises:
            ArgumentError: As for `run`.
            ReplicaDivergenceError: The copies of a mirrored variable would become different.
        """
        args, kwargs = checked_call("fn", fn, args, kwargs)
        try:
            result = self._update(variable, fn, args, kwargs)
        except TypeError:
            explain_misfit("fn", fn, (variable, *args), kwargs)
            raise
        return result if group else self.local_results(result)

    @abc.abstractmethod
    def _update(
        self, variable: VariableLike, fn: PyTreeFunction, args: tuple[PyTree, ...], kwargs: dict[str, PyTree]
    ) -> PyTree:
        """Calls `fn` on each copy of `variable`."""

    # Combining.

    @overload
    def reduce(self, op: ReduceOp | str, value: PyTree, axis: int | Sequence[int] | None = None) -> PyTree: ...

    @overload
    def reduce(
        self, *, reduce_op: ReduceOp | str, value: PyTree, axis: int | Sequence[int] | None = None
    ) -> PyTree: ...  # TensorFlow's keyword

    @entry_point  # type: ignore[misc]  # called_as lets it be called with TensorFlow's keyword
    @called_as("tf.distribute.Strategy.reduce")
    def reduce(self, op: ReduceOp | str, value: PyTree, axis: int | Sequence[int] | None = None) -> PyTree:
        """Combines the components of per-replica values.

        Components have the per-replica values, every array that `run` returned (also one that is equal on all
        replicas: its sum over R replicas is R times it), and variables that keep one per replica.

        Args:
            op: `ReduceOp.SUM`, `ReduceOp.MEAN`, or their names. As in NumPy, the sum of integers smaller than int32 is
                an int32 or uint32 (of bools an int32, their number), and the mean of integers is a float.
            value: Per-replica value, or a pytree of them.
            axis: None combines element by element: the result has a component's shape. An int or tuple of ints also
                combines the entries along these dimensions of each component. A mean then divides by the number of
                entries on all replicas together, so it is the true mean also when replicas have different numbers.

        Returns:
            One array for each leaf, on every device of the strategy. The mean of a value without components is the
            value; of a variable, the value that it has now.

        Raises:
            ReduceError: Unknown op, bad axis, a value that is no numbers, or the sum of a value without components:
                without `axis` always; with `axis`, where the value is a result of `reduce`, `gather` or `replicate`
                itself, or a mirrored variable. Any other array counts once per replica then, as in tf.distribute; also
                one that you have *computed* from such a result (`gathered * 1`), or copied to NumPy: nothing tells it
                from an array of your own. Do not sum it again. On several workers also a value without components
                that differs between them.
            ReplicaShapeError: Components of different shapes with `axis=None`, or that differ in a dimension other than
                `axis`.
            ContextError: Called inside `run`; use `rx.get_replica_context().all_reduce` there.
        """
        op = ReduceOp.of(op)
        self._check_cross_replica("strategy.reduce", "rx.get_replica_context().all_reduce")
        check_no_slices(value, "strategy.reduce")
        self._hold_program()
        return jax.tree_util.tree_map(
            lambda leaf: self._reduce_leaf(op, leaf, axis), opened(value), is_leaf=is_per_replica
        )

    def _reduce_leaf(self, op: ReduceOp, leaf: Leaf, axis: int | Sequence[int] | None) -> PyTree:
        each = one_per_replica(leaf, refused_if_equal=op is ReduceOp.SUM)
        if each is None:
            self._check_common(leaf, "strategy.reduce")
            return reduced_plain(op, leaf, axis, self.num_replicas_in_sync)
        reduction = Reduction(op, tuple(axis) if isinstance(axis, list) else axis)
        return noted(self._combined_in_turn(each, reduction), COMBINED)

    @entry_point
    def gather(self, value: PyTree, axis: int = 0) -> PyTree:
        """Concatenates the components of per-replica values along `axis`, in replica order.

        Args:
            value: Value with components (see `reduce`) of at least one dimension, or a pytree of them; the components
                may differ in size along `axis` only. A value without components comes back as it is.
            axis: The dimension.

        Raises:
            ReduceError: Bad axis, or scalar components; or a value without components differs between workers.
            ReplicaShapeError: The components differ in another dimension.
            ContextError: Called inside `run`; use `rx.get_replica_context().all_gather` there.
        """
        self._check_cross_replica("strategy.gather", "rx.get_replica_context().all_gather")
        check_no_slices(value, "strategy.gather")
        self._hold_program()

        def gathered(leaf: Leaf) -> PyTree:
            each = one_per_replica(leaf)
            if each is None:
                self._check_common(leaf, "strategy.gather")
                return value_of(leaf)
            return noted(self._combined_in_turn(each, Gathering(axis)), COMBINED)

        return jax.tree_util.tree_map(gathered, opened(value), is_leaf=is_per_replica)

    def _hold_program(self) -> None:
        """Makes this the strategy of the program that is being traced, if there is one."""

    def _check_common(self, leaf: Leaf, call: str) -> None:
        """Refuses what each worker has for itself where `call` takes it for one value of all of them."""
        if not self.placement.spans_processes or context.current().frame is not None or is_variable(leaf):
            return
        if (own := digest_of_own(leaf)) is None:
            return
        told = current_group().exchange(f"what {call} was given", own)
        if any(each != own for each in told):
            raise ReduceError(
                f"{call} was given a value that differs between the workers: here {leaf!r:.60}. It takes a value of "
                "Python, NumPy or one device for the same everywhere. One that each worker has for itself goes through "
                "strategy.distribute_values_from_function(lambda context: value) first."
            )

    def _combined_in_turn(self, each: PyTree, combine: Combine) -> PyTree:
        if context.current().frame is not None:
            return self._combined(each, combine)
        with turns.of_thread(), turns.DISPATCH: return self._combined(each, combine)  # noqa: E701  # fmt: skip

    def _combined(self, each: PyTree, combine: Combine) -> PyTree:
        """Returns the components of a value combined, on every device of the strategy."""
        return combine(each)

    @abc.abstractmethod
    def local_results(self, value: PyTree) -> tuple[PyTree, ...]:
        """Returns the components of `value`, one for each replica.

        For a pytree: a tuple of pytrees. A value that is not distributed gives a tuple of one.
        Variables give their values.

        Raises:
            ReplicaShapeError: The pytree has values of steps that ran on different numbers of replicas.
        """

    # Placing.

    @abc.abstractmethod
    def replicate(self, tree: PyTree) -> PyTree:
        """Returns a copy of the arrays and numbers in `tree` on the devices of the strategy.

        Every device holds them in full, unless the strategy shards variables: then its rule cuts them, too.
        """

    @abc.abstractmethod
    def distribute_dataset(
        self, dataset: PyTree, options: InputOptions | None = None, *, batch_size: int | None = None
    ) -> PyTree:
        """Splits each global batch of `dataset` over the replicas, ahead of its use, in the background.

        Args:
            dataset: Iterable of global batches (pytrees of arrays whose first dimensions are rows), a Grain dataset, a
                torch `DataLoader`, a `tf.data.Dataset`, a function without arguments that returns an iterator, an
                `rx.data.FileSource`, batches of `rx.data.Rows`, or, with `batch_size`, arrays to cut into batches.
            options: How many batches to prepare in advance and what to do with rows that do not divide.
            batch_size: Rows in a *global* batch, for a pytree of arrays.

        Returns:
            An iterable, and re-iterable if `dataset` is. It yields the batches with `PerReplica` leaves; with one
            replica, bare arrays. A batch that does not divide by the number of replicas is split over as many as
            divide it: nothing is padded or lost. `get_state()` tells how far the training loop has come in it, and
            after `set_state(state)` a pass begins there, also in another job with more or fewer workers.

        Raises:
            BatchError: While iterating: a batch without rows, leaves that disagree, or a changed structure.
        """

    @abc.abstractmethod
    def distribute_datasets_from_function(
        self, dataset_fn: Callable[[InputContext], PyTree], options: InputOptions | None = None
    ) -> PyTree:
        """Like `distribute_dataset`, for a function that returns a dataset of *per-replica* batches.

        Consecutive batches go to consecutive replicas. `dataset_fn` is called with an `InputContext` each time the
        result is iterated over.
        """

    def shard_report(
        self, dataset: PyTree, options: InputOptions | None = None, *, batch_size: int | None = None
    ) -> str:
        """Runs through a dataset and returns a line for each worker: what it reads, and whether that is right.

        A line has the worker's number of rows, batches and files (of an `rx.data.FileSource`), how many of its rows
        another worker reads too (`overlap`), and how many rows of the dataset no worker reads (`missing`). All workers
        must call this together; all of them get the whole report.

        Args:
            dataset: What `distribute_dataset` has returned, or what it takes.
            options: As for `distribute_dataset`, if it has not been called.
            batch_size: Likewise.

        Raises:
            ArgumentError: The dataset is an iterator, which would be used up.
        """
        if isinstance(dataset, (DistributedDataset, DistributedDatasetFromFunction)):
            return dataset.shard_report()
        return self._dataset_of_report(dataset, options, batch_size).shard_report()

    def _dataset_of_report(
        self, dataset: PyTree, options: InputOptions | None, batch_size: int | None
    ) -> DistributedDataset:
        """Returns what reports on a dataset that the strategy has not distributed yet."""
        return DistributedDataset(
            dataset, num_replicas=1, mesh_for=self.placement.mesh_for, options=options, batch_size=batch_size
        )

    @abc.abstractmethod
    def distribute_values_from_function(self, value_fn: Callable[[ValueContext], PyTree]) -> PyTree:
        """Builds a per-replica value from `value_fn(ValueContext)`, called once for each replica."""

    def explain(
        self,
        variables: Sequence[VariableLike] | keras.Model | Function[..., Any] | PyTree,
        *args: PyTree,
        step: PyTree = None,
        **kwargs: PyTree,
    ) -> Shown:
        """Returns a table, one line for each variable: its path, shape, layout, bytes on each device, and the rule.

        An array in a pytree, such as a state that `replicate` has placed, has a line as well.

        With several variables the last line has their sum. A notebook shows the table as one. Where a step is compiled
        for it, a second table counts the collectives of the compiled program: how many there are of each kind, over
        which axes of the mesh, and their bytes. One in a loop counts once.

        Args:
            variables: Variables; or a Keras model (whose optimizer's are listed too); or an `rx.function`, of which
                the variables that it uses are listed, and the collectives counted; or a pytree of arrays and variables.
                Or a distributed dataset, after some of its steps: then whether the loop waited for its batches, and for
                what.
            args: The arguments of the `rx.function`, which is traced and compiled for them, and not run.
            step: With a compiled Keras model, a batch of its training, such as `(x, y)`: the collectives of the step
                of `fit` are counted. True for a batch like those that the model has been trained on, with one row for
                each replica.
            kwargs: Keyword arguments of the `rx.function`.

        Raises:
            ArgumentError: `step` is given without a compiled Keras model, or is True before the model was trained; or
                arguments without an `rx.function`.
            LayoutError: A pattern of a user's layouts matches no variable of a model.
        """
        return explain(self, variables, args, kwargs, step)

    def plan(self, model: keras.Model, batch: PyTree = None) -> Any:  # a `planning.Plan`, whose room is an upper one
        """Returns what is known of a training step of `fit` before it runs: its memory, its collectives, its work.

        The step is traced and compiled for the devices that there are, and not run. A notebook shows a table. For
        devices that need not exist: `rx.plan`, and `replicax plan train.py --on v5e:4x4`.

        Args:
            model: A compiled Keras model that was made in the scope.
            batch: A batch of its training, such as `(x, y)`; by default one like those that it has been trained on,
                with one row for each replica.

        Raises:
            ArgumentError: The model belongs to another strategy, is not compiled, or was not trained and has no batch.
            ProgramError: The strategy cuts steps in parts.

        Example:
            >>> import keras, numpy as np
            >>> strategy = rx.MirroredStrategy()
            >>> with strategy.scope():
            ...     model = keras.Sequential([keras.Input([4]), keras.layers.Dense(2)])
            >>> model.compile("sgd", "mse")
            >>> strategy.plan(model, (np.ones([16, 4]), np.ones([16, 2]))).bytes_of("parameters")
            40
        """
        return upper_rooms.load(upper_rooms.PLANNING)(self, model, batch)

    # The spellings of tf.distribute.

    def experimental_local_results(self, value: PyTree) -> tuple[PyTree, ...]:
        """Alias of `local_results`."""
        return self.local_results(value)

    def experimental_distribute_dataset(
        self, dataset: PyTree, options: InputOptions | None = None, *, batch_size: int | None = None
    ) -> PyTree:
        """Alias of `distribute_dataset`."""
        return self.distribute_dataset(dataset, options, batch_size=batch_size)

    def experimental_distribute_datasets_from_function(
        self, dataset_fn: PyTreeFunction, options: InputOptions | None = None
    ) -> PyTree:
        """Alias of `distribute_datasets_from_function`."""
        return self.distribute_datasets_from_function(dataset_fn, options)

    def experimental_distribute_values_from_function(self, value_fn: PyTreeFunction) -> PyTree:
        """Alias of `distribute_values_from_function`."""
        return self.distribute_values_from_function(value_fn)

    def _facts(self) -> dict[str, object]:
        """Returns the lines of the table in a notebook. Making them asks no other process and computes nothing."""
        return {"replicas in sync": self.num_replicas_in_sync, "devices": listed(self.devices)}

    def _repr_html_(self) -> str:
        return html_facts(type(self).__name__, self._facts())

    def _check_cross_replica(self, call: str, instead: str | None = None) -> None:
        current = context.current()
        if current.replica is not None:
            hint = f" Use {instead} there." if instead else ""
            raise ContextError(f"{call} was called inside strategy.run, in replica context.{hint}")
        if current.strategy is not None and current.strategy is not self:
            raise ContextError(f"{call} of {self!r} was called while {current.strategy!r} is the current strategy.")

    def __deepcopy__(self, memo: dict[int, object]) -> Strategy:
        return self  # The devices are where they are: a copied model or variable stays with its strategy.

    def __copy__(self) -> Strategy:
        raise ContextError(f"{self!r} cannot be copied: variables belong to one strategy object.")


_MOST_DEVICES = 16


def listed(devices: Sequence[jax.Device]) -> str:
    """Returns the names of devices; of many, how many there are and the first and the last."""
    names = [device_name(device) for device in devices]
    if len(names) <= _MOST_DEVICES:
        return ", ".join(names)
    return f"{len(names)}: {', '.join(names[:2])} ... {names[-1]}"
