"""Every exception that replicax raises on purpose.

Each class derives from `ReplicaxError` and from the built-in exception that a caller would expect (`ValueError` for
a bad value, `RuntimeError` for a call in the wrong place, ...), so both `except rx.ReplicaxError` and ordinary
handlers work. A message states the rule, shows the offending value and names the way out. Exceptions survive
pickling, since they travel between processes.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Mapping, Sequence

from replicax.errors.exit_codes import ExitCode


class ReplicaxError(Exception):
    """Base class of all errors raised by replicax.

    Example:
        >>> try:
        ...     rx.MirroredStrategy(["cpu:99"])
        ... except rx.ReplicaxError as error:
        ...     print(type(error).__name__)
        DeviceError
    """

    def __reduce__(self) -> str | tuple[object, ...]:
        initialise = type(self).__init__
        if not isinstance(initialise, types.FunctionType):
            return super().__reduce__()
        # Each argument of an error's own `__init__` is an attribute, too.
        return type(self), tuple(getattr(self, name) for name in [*inspect.signature(initialise).parameters][1:])


class DeviceError(ReplicaxError, ValueError):
    """A device does not exist, is named twice, or cannot be configured any more."""


class ContextError(ReplicaxError, RuntimeError):
    """A call was made in the wrong context: another strategy's scope, or replica instead of cross-replica context."""


class StrategyMismatchError(ContextError):
    """A variable of one strategy was used under another."""


class ArgumentError(ReplicaxError, TypeError, ValueError):
    """An argument has the wrong type or value."""


class AbsentNameError(ReplicaxError, AttributeError):
    """An attribute exists in another library, and in replicax under another name or not at all.

    Attributes:
        owner: The object that lacks it, such as `"module 'replicax'"`.
        name: The attribute.
        advice: What to use instead.
    """

    def __init__(self, owner: str, name: str = "", advice: str = ""):
        self.owner, self.advice = owner, advice
        super().__init__(f"{owner} has no attribute {name!r}. {advice}".rstrip(), name=name)


class ReduceError(ReplicaxError, ValueError):
    """A reduction has no meaning: the op is unknown, the axis is wrong, or the value is reduced already."""


class ReplicaShapeError(ReplicaxError, ValueError):
    """The components of a per-replica value do not have the shapes that the operation needs."""


class BatchError(ReplicaxError, ValueError):
    """A global batch cannot be split: it has no rows, its leaves disagree, or its structure has changed."""


class DataError(ReplicaxError, ValueError):
    """A row of a dataset cannot be read: its file is damaged or gone, or what it holds is not what was asked for.

    Attributes:
        reason: What is wrong.
        file: The name of the file, or of the source; empty if it is not known.
        record: The number of the record in the file, from 0; None if it is not known.
        feature: The feature or column; empty if it is not about one.
    """

    def __init__(self, reason: str, file: str = "", record: int | None = None, feature: str = ""):
        self.reason, self.file, self.record, self.feature = reason, file, record, feature
        where = [file, "" if record is None else f"record {record}", f"feature {feature!r}" if feature else ""]
        super().__init__(": ".join([", ".join(filter(None, where)), reason]) if any(where) else reason)

    @classmethod
    def of(cls, error: Exception, file: str = "", record: int | None = None) -> DataError:
        """Returns an error that has been raised while a row was read, with the place of the row."""
        if isinstance(error, DataError):
            found = record if error.record is None else error.record
            made = cls(error.reason, error.file or file, found, error.feature)
        else:
            made = cls(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__, file, record)
        made.__cause__ = error.__cause__ if isinstance(error, DataError) else error
        return made


class VariableError(ReplicaxError, ValueError):
    """A variable was created or assigned against its declared synchronization and aggregation."""


class IslandDivergenceError(ReplicaxError, RuntimeError):
    """A variable was read whose value differs between islands until they synchronize.

    Attributes:
        variable: The name of the variable.
        step: How many steps this island has made since the variable was equal everywhere.
        every: After how many steps islands synchronize.
        counts: Whether the variable counts rows (a metric), so that its total is the sum over islands.
    """

    def __init__(self, variable: str, step: int = 1, every: int = 1, counts: bool = False):
        self.variable, self.step, self.every, self.counts = variable, step, every, counts
        own = (
            "has counted rows of this island alone since the islands' counts were added up"
            if counts
            else f"has this island's own value, {step} of {every} steps after the islands were equal"
        )
        super().__init__(
            f"Variable {variable!r} {own}. To read one value for all, call strategy.synchronize() before, on all "
            "islands. To read this island's own, for a progress report say: with strategy.own_values(): ..."
        )


class LayoutError(ReplicaxError, ValueError):
    """A layout names an axis that does not exist, or does not fit its variable."""


class MeshError(ReplicaxError, ValueError):
    """A mesh's dimensions are malformed, do not multiply to its number of devices, or lack the requested name."""


class TensorError(ReplicaxError, TypeError, ValueError):
    """A tensor cannot be packed, unpacked or laid out: its components have a wrong kind, number, shape or dtype."""


class CheckpointError(ReplicaxError, ValueError):
    """A checkpoint cannot be written, does not exist, is incomplete, or does not match its objects."""


class WeightsError(ReplicaxError, ValueError):
    """A file of weights does not fit the model, is damaged, or cannot be written."""


class UnmatchedError(CheckpointError, AssertionError):
    """A restore has not restored everything that its status must guarantee."""


class ExportError(ReplicaxError, ValueError):
    """A function cannot be exported, or an exported function cannot be loaded."""


class PlanError(ReplicaxError, ValueError):
    """A step cannot be planned: the devices are unknown, their compiler is missing, or the strategy is another kind."""


class ClusterError(ReplicaxError, ValueError):
    """The description of a cluster is malformed, contradicts itself, or does not fit its use.

    Attributes:
        field: What is wrong, such as `"TF_CONFIG task.index"` or the name of an environment variable.
        value: Its value; None if it is missing. Anything but plain data is stored as its `repr`.
        problem: The rule that it breaks.
        cure: What to do.
    """

    def __init__(self, field: str, value: object = None, problem: str = "is malformed", cure: str = ""):
        self.field = field
        plain = value is None or isinstance(value, (bool, int, float, str))
        self.value: object = value if plain else repr(value)
        self.problem = problem
        self.cure = cure
        shown = repr(value)
        got = "" if value is None else f", got {shown if len(shown) <= 200 else shown[:200] + '...'}"
        super().__init__(f"{field} {problem}{got}. {cure}".rstrip())

    def __reduce__(self) -> tuple[object, ...]:
        return type(self)._again, (str(self), vars(self))

    @classmethod
    def _again(cls, message: str, attributes: dict[str, object]) -> ClusterError:
        error = cls.__new__(cls)
        error.args = (message,)
        vars(error).update(attributes)
        return error


class LaunchError(ReplicaxError, ValueError):
    """A job cannot be started, here or elsewhere, or a manifest for a real cluster cannot be written."""


class WorkersFailedError(ReplicaxError, AssertionError):
    """A function that `rx.testing` ran in several processes failed in one of them, or took too long.

    Attributes:
        function: Its name.
        problem: What happened.
        logs: For each worker the end of its output; after a timeout it contains the stacks.
        timed_out: Whether it took too long.
    """

    def __init__(
        self, function: str, problem: str = "", logs: Mapping[str, str] | None = None, timed_out: bool = False
    ):
        self.function, self.problem, self.logs, self.timed_out = function, problem, dict(logs or {}), timed_out
        shown = [f"\n\n----- {worker} -----\n{log or '(it printed nothing)'}" for worker, log in self.logs.items()]
        super().__init__(f"{function} {problem}.{''.join(shown)}")


class RemoteWorkerError(ReplicaxError, RuntimeError):
    """A worker that ran a function for a client elsewhere has failed.

    Attributes:
        worker: Its name, such as `"worker 1"`.
        how: How it ended, in a few words.
        words: Its traceback there, or the end of its output.
    """

    def __init__(self, worker: str, how: str = "", words: str = ""):
        self.worker, self.how, self.words = worker, how, words
        super().__init__(f"{worker} failed: {how}. {f'Its last words:{chr(10)}{words}' if words else ''}".rstrip())


class ProgramError(ReplicaxError, RuntimeError):
    """A function could not be turned into a compiled program."""


class OutOfMemoryError(ProgramError, MemoryError):
    """A device has not enough memory for a program. The message has a table of what was where."""


class InitialValueError(ProgramError):
    """The initial value of a variable depends on values that are known only when the program runs."""


class ProgramMismatchError(ProgramError):
    """Two workers were about to run different programs, and would have waited for each other forever.

    Attributes:
        exit_code: The exit code of a process that does not catch it: 72, `rx.exit_codes.ExitCode.DIVERGED`.
        worker: Name of this worker.
        function: Name of its function.
        fingerprint: Hash of the program.
        other_worker: Name of the other worker.
        other_function: Name of its function.
        other_fingerprint: Hash of its program.
        index: How many programs these workers had compared before.
    """

    exit_code = ExitCode.DIVERGED

    def __init__(
        self,
        worker: str,
        function: str = "",
        fingerprint: str = "",
        other_worker: str = "",
        other_function: str = "",
        other_fingerprint: str = "",
        index: int = 0,
    ):
        self.index = index
        self.worker, self.function, self.fingerprint = worker, function, fingerprint
        self.other_worker, self.other_function, self.other_fingerprint = other_worker, other_function, other_fingerprint
        super().__init__(
            f"The workers' programs differ, at number {index + 1}: {worker} is about to run {function!r} (fingerprint "
            f"{fingerprint or 'none'}), {other_worker} {other_function!r} ({other_fingerprint or 'none'}). All workers "
            "must call the same functions in the same order, with arguments of the same shapes, and close over the "
            "same arrays. Look for code that depends on the worker: its index, its data, random choices, other "
            "settings of JAX or Keras, different versions of the script. (JAX_LOG_COMPILES=1 shows the programs.)"
        )


class ArgumentMismatchError(ProgramMismatchError):
    """Two workers were about to run a function with different values of an argument that must be equal.

    Attributes:
        function: Name of the function.
        argument: The argument, such as `"learning_rate"` or `"settings['decay']"`.
        worker: Name of this worker.
        value: Its value, for people.
        other_worker: Name of the other worker.
        other_value: That worker's value.
        index: How many programs these workers had compared before.
    """

    def __init__(
        self,
        function: str,
        argument: str = "",
        worker: str = "",
        value: str = "",
        other_worker: str = "",
        other_value: str = "",
        index: int = 0,
    ):
        super().__init__(worker, function, "", other_worker, function, "", index)
        self.argument, self.value, self.other_value = argument, value, other_value
        self.args = (
            f"The workers give {function!r} different values of its argument {argument!r}: {worker} {value}, "
            f"{other_worker} {other_value}. Numbers, settings and NumPy arrays must be equal on all workers: each "
            "replica computes with those of its worker, and variables would drift apart. Take the chief's "
            "(strategy.replicate(value)), or give each replica a value of its own "
            "(strategy.distribute_values_from_function); batches come from strategy.distribute_dataset.",
        )


class ValuesMismatchError(ProgramMismatchError):
    """Two workers were about to exchange values that do not belong together, such as those of different variables.

    Attributes:
        what: The kind of values.
        worker: Name of a worker.
        value: Name, shape and dtype of its value; empty if it has no more.
        other_worker: Name of another worker.
        other_value: Name, shape and dtype of that worker's value.
        index: How many values before this one belong together.
    """

    def __init__(
        self,
        what: str,
        worker: str = "",
        value: str = "",
        other_worker: str = "",
        other_value: str = "",
        index: int = 0,
    ):
        super().__init__(worker, what, "", other_worker, what, "", index)
        self.what, self.value, self.other_value = what, value, other_value
        self.args = (
            f"The workers have different {what}, at number {index + 1}: {worker} has {value or 'no more'}, "
            f"{other_worker} has {other_value or 'no more'}. Their order matches them, so each worker must have "
            "the same names, shapes and dtypes in the same order; otherwise one would get the value of another. Look "
            "for code that depends on the worker: iteration over a set, its index, its data, code behind "
            "`if strategy.is_chief`, different versions of the script.",
        )


class TracedValueError(ProgramError):
    """Python needs the value of an array while the function is being traced, when there is none yet."""


class ReplicaDivergenceError(ReplicaxError, ValueError):
    """A mirrored variable was assigned a value that may differ between replicas.

    Attributes:
        variable: Name (or Keras path) of the variable.
        reason: Why the value may differ; None if it simply depends on this replica's data.

    Example:
        >>> strategy = rx.MirroredStrategy(["cpu:0", "cpu:1"])
        >>> with strategy.scope():
        ...     count = rx.Variable(0, name="count")
        >>> def replica():
        ...     count.assign(rx.get_replica_context().replica_id_in_sync_group)
        >>> try:
        ...     strategy.run(replica)
        ... except rx.ReplicaDivergenceError as error:
        ...     print(error.variable)
        count
    """

    def __init__(self, variable: str, reason: str | None = None):
        self.variable, self.reason = variable, reason
        because = "is computed from this replica's own data" if reason is None else reason
        super().__init__(
            f"Variable {variable!r} is mirrored: it must hold the same value on every replica, but it was assigned a "
            f"value that {because}. Make the value equal first (for gradients: "
            "`rx.value_and_grad(..., aggregation='sum')`; for others: "
            "`rx.get_replica_context().all_reduce('mean', value)`), or create the variable with an aggregation "
            "('sum', 'mean' or 'only_first_replica') that says how to combine the replicas' values."
        )


class ReplicaDriftError(ReplicaxError, RuntimeError):
    """Copies of a variable on several devices, which must be equal, are not.

    Attributes:
        variables: The names (or Keras paths) of the variables.
        replicas: The replicas whose copies are wrong, by their place among the strategy's devices; all that differ
            where no majority agrees.
        shown: Their devices, for people.
        is_sure: Whether more than half of the copies agree, so that it is known which are wrong.
        step: The step after which they were compared; None if the caller has not said.

    Example:
        >>> rx.errors.ReplicaDriftError(["dense/kernel"], [3], ["3 (gpu:3, process 0)"], True, 200).replicas
        (3,)
    """

    def __init__(
        self,
        variables: Sequence[str],
        replicas: Sequence[int] = (),
        shown: Sequence[str] = (),
        is_sure: bool = True,
        step: int | None = None,
    ):
        self.variables, self.replicas, self.shown = tuple(variables), tuple(replicas), tuple(shown)
        self.is_sure, self.step = is_sure, step
        when = "" if step is None else f"After step {step}: "
        most = 3
        names = ", ".join(repr(name) for name in variables[:most]) + (", ..." if len(variables) > most else "")
        where = ", ".join(shown or map(str, replicas))
        blamed = f"The copies of replica {where} have drifted from the others'."
        unsure = f"The copies of replicas {where} differ, and no majority says which are right."
        super().__init__(
            f"{when}{blamed if is_sure else unsure} {len(variables)} variable(s): {names}. The copies of a mirrored "
            "variable are equal unless a worker has assigned what it alone has computed (`kernel * 0`; NumPy arrays "
            "are sent to all), or memory or a chip has failed. Restore a checkpoint from before. If nothing outside of "
            "the steps assigns it, look at that device."
        )


class WorkersDisagreeError(ReplicaxError, ValueError):
    """Workers that train synchronously do different things.

    Attributes:
        exit_code: The exit code of a process that does not catch it: 72, `rx.exit_codes.ExitCode.DIVERGED`.
        what: What differs, such as `"logs"`.
        found: For each worker what it has and others lack.
    """

    exit_code = ExitCode.DIVERGED

    def __init__(self, what: str, found: Mapping[str, Sequence[str]] | None = None):
        self.what, self.found = what, dict(found or {})
        told = "; ".join(f"{worker} alone or with some others: {', '.join(own)}" for worker, own in self.found.items())
        super().__init__(
            f"All workers must have the same {what}, but they differ. {told}. Every worker must run the same program: "
            "look for code that runs on only some of them, such as a callback or a metric behind `if "
            "strategy.is_chief`."
        )


class StrategyCheckError(ReplicaxError, AssertionError):
    """A strategy breaks rules of `rx.Strategy`, as `rx.testing.check_strategy` has found.

    Attributes:
        strategy: The strategy, in words.
        broken: Each rule that it breaks, and what was found.
    """

    def __init__(self, strategy: str, broken: Mapping[str, str] = types.MappingProxyType({})):
        self.strategy, self.broken = strategy, dict(broken)
        lines = "".join(f"\n- {rule}: {found}" for rule, found in broken.items())
        super().__init__(f"{strategy} breaks {len(broken)} rules of strategies:{lines}")


class ClusterTimeoutError(ReplicaxError, TimeoutError):
    """The processes of a cluster did not find each other in time at its start.

    Attributes:
        process: Name of this process, such as `"worker:1 at 10.0.0.2:2222"`.
        timeout_s: How long it waited, in seconds.
        missing: Names of the processes that are known to be missing.
        address: The address of process 0, where they meet.
        note: What else is known.
    """

    def __init__(
        self, process: str, timeout_s: float = 0.0, missing: Sequence[str] = (), address: str = "", note: str = ""
    ):
        self.process, self.timeout_s, self.missing = process, timeout_s, tuple(missing)
        self.address, self.note = address, note
        absent = ", ".join(missing) if missing else "others that only process 0 knows"
        super().__init__(
            f"{process} waited {timeout_s:g} s at {address} for {absent}{note}. Every process of the cluster must be "
            "started, with the same cluster and a task of its own, and must reach that address. If they start slowly, "
            "wait longer (a strategy's `start_timeout`)."
        )


class BarrierTimeoutError(ReplicaxError, TimeoutError):
    """The other clients (processes) did not come to a barrier in time.

    Attributes:
        barrier: Name of the barrier.
        timeout_ms: How long it waits, in milliseconds.
        client: Id of the client that waited.
        missing: Ids of the clients that are known to be missing.
        late: Whether this client came after the others had given up.
    """

    def __init__(
        self, barrier: str, timeout_ms: int = 0, client: int = 0, missing: Sequence[int] = (), late: bool = False
    ):
        self.barrier = barrier
        self.timeout_ms = timeout_ms
        self.client = client
        self.missing = tuple(missing)
        self.late = late
        if late:
            happened = f"Client {client} came to barrier {barrier!r} after the others had given up waiting there."
        else:
            absent = f"client(s) {', '.join(map(str, missing))}" if missing else "the others"
            happened = (
                f"Client {client} waited {timeout_ms} ms at barrier {barrier!r} for {absent}, which did not come."
            )
        super().__init__(
            f"{happened} All clients of the mesh must call the same barriers in the same order: look at the log of "
            "those that did not come. If they are only slow, give all of them a longer `timeout_in_ms`. After this "
            "error the name cannot be used again."
        )


class MeetingError(ReplicaxError, RuntimeError):
    """The processes of a job that exchange values from time to time cannot go on doing so.

    Attributes:
        message: Why.
        exit_code: The exit code of a process that does not catch it: 71, `rx.exit_codes.ExitCode.PEER_LOST`; 70
            (`STALLED`) if it is this process that is cut off, and the others go on.
    """

    def __init__(self, message: str = "", exit_code: int = ExitCode.PEER_LOST):
        self.message, self.exit_code = message, exit_code
        super().__init__(message)


class ElasticError(ReplicaxError, RuntimeError):
    """Something cannot go on, or does not fit, where workers come and go during the training."""


class NotJoinedError(ElasticError):
    """A worker that has come to a running elastic job uses the strategy before it has joined the others.

    Attributes:
        exit_code: The exit code of a process that does not catch it: 2, `rx.exit_codes.ExitCode.USAGE`.
    """

    exit_code = ExitCode.USAGE


class EstimatorError(ReplicaxError, ValueError):
    """An estimator was used in a way that has no meaning, or a model function returned what does not fit its mode."""


class NanLossError(ReplicaxError, RuntimeError):
    """The loss of a training is not finite any more.

    Attributes:
        step: The global step after which it was found.
        loss: The loss: `"nan"`, `"inf"` or `"-inf"`.
    """

    def __init__(self, step: int, loss: str = "nan"):
        self.step, self.loss = step, loss
        super().__init__(
            f"The loss is {loss} at step {step}: the training diverges. The newest checkpoint is from before. Try a "
            "smaller learning rate, or clip the gradients; NanTensorHook(fail_on_nan_loss=False) stops without error."
        )


class EndOfDataError(BatchError):
    """There is no batch any more, for a scheduled step or in an `Optional` without a value."""


class CancelledError(ReplicaxError, RuntimeError):
    """A scheduled function did not run, because another one failed before. Schedule it again."""


class WorkerLostError(ReplicaxError, RuntimeError):
    """The work cannot go on without a worker that is lost, or does not come to where the others wait for it.

    With `rx.MultiWorkerMirroredStrategy` and its like the watch over the workers raises it in the script, in the call
    that waits for the others, and so do all calls after it; the message is the report of what each worker was doing.
    The process ends within 30 seconds, whatever the script does: after this time a job is started again as a whole.
    With parameter servers, each worker that tried a scheduled function was lost in doing so.

    Attributes:
        message: The message.
        exit_code: The exit code of a process that does not catch it: 70 if a worker makes no progress, 71 if one is
            gone (`rx.exit_codes.ExitCode`); 1 with parameter servers.
        workers: The names of the workers to blame, such as `("worker:1",)`; empty if that is not known.
    """

    def __init__(self, message: str = "", exit_code: int = ExitCode.FAILED, workers: Sequence[str] = ()):
        self.message, self.exit_code, self.workers = message, exit_code, tuple(workers)
        super().__init__(message)


class ParameterServerLost(ReplicaxError, RuntimeError):
    """A parameter server was lost, and with it the variables that it had; or the cluster's head, and with it all.

    Attributes:
        exit_code: The exit code of a process that does not catch it: 71, `rx.exit_codes.ExitCode.PEER_LOST`.
    """

    exit_code = ExitCode.PEER_LOST


class RemoteError(ReplicaxError, RuntimeError):
    """A function raised an error on a worker. It is the cause of the error that is raised here, and shows the other
    side's traceback; it is raised itself if the error is of a type that cannot be sent.

    Attributes:
        name: Name of the error's type.
        words: The error with its traceback.
    """

    def __init__(self, name: str, words: str = ""):
        self.name, self.words = name, words
        super().__init__(f"On another process, {name} was raised:\n\n{words}")
