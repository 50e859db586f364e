"""`train_and_evaluate` from a client, such as a laptop: workers elsewhere train, with an evaluator beside the first.

The estimator and the specs are sent to the workers; `model_dir` is a folder that all of them see. The evaluator is a
process of its own on the first worker's machine, as `replicax run --evaluator` has one. Errors of the workers and of
the evaluator are raised in the client.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO, cast

from replicax.compat.systems import check_system
from replicax.errors import ClusterError, EstimatorError
from replicax.job.processes import child
from replicax.job.processes.call import Call, Raised, Returned, error_of, payload_of, result_of
from replicax.job.processes.task import EVALUATOR
from replicax.strategies import MultiWorkerMirroredStrategy, Strategy

if TYPE_CHECKING:
    from replicax.estimator.distribution import StrategyOrMaker
    from replicax.estimator.estimator import Estimator
    from replicax.estimator.journal import Result
    from replicax.estimator.run_config import RunConfig
    from replicax.estimator.specs import EvalSpec, TrainSpec

    Train = Callable[[Estimator, TrainSpec], Result]
    Evaluate = Callable[[Estimator, TrainSpec, EvalSpec, float], Result]  # with the time when the training began


def train_and_evaluate_there(
    estimator: Estimator, train_spec: TrainSpec, eval_spec: EvalSpec, train: Train, evaluate: Evaluate
) -> Result:
    """Trains on the workers of a client, evaluates beside the first of them; returns the last evaluation."""
    _check_strategy(estimator.config.train_distribute)
    evaluation = payload_of(Call(evaluate, (estimator, train_spec, eval_spec, time.time())))
    with _client(estimator.config) as client:
        return client.remote(_on_a_worker, estimator, train_spec, train, evaluation)


def _on_a_worker(estimator: Estimator, train_spec: TrainSpec, train: Train, evaluation: bytes) -> Result:
    if not estimator.config.is_chief:
        return train(estimator, train_spec)
    with Beside(evaluation) as evaluator:
        train(estimator, train_spec)
        return cast("Result", evaluator.result())


def _check_strategy(given: StrategyOrMaker | None) -> None:
    if isinstance(given, Strategy) and not given.is_client:
        raise ClusterError(
            "train_distribute",
            repr(given),
            "belongs to this process, and the training is elsewhere, on `remote_cluster`",
            "Give the class, or leave it out: each worker makes its own.",
        )


@contextlib.contextmanager
def _client(config: RunConfig) -> Iterator[MultiWorkerMirroredStrategy]:
    """Yields the client's strategy, which is closed afterwards if it is made here."""
    given = config.train_distribute
    if isinstance(given, MultiWorkerMirroredStrategy):
        yield given
        return
    strategy = MultiWorkerMirroredStrategy(remote_cluster=config.remote_cluster)
    try:
        yield strategy
    finally:
        strategy.close()


class Beside:
    """A process that runs a call pickled by `payload_of`, and ends with this one. A context manager, which ends it."""

    def __init__(self, payload: bytes, environ: Mapping[str, str] | None = None):
        check_system()  # LaunchError on Windows, which cannot run the processes of a job.
        self._files = contextlib.ExitStack()
        self._result, self._news = _file(self._files), _file(self._files)
        with tempfile.TemporaryFile() as call:
            call.write(payload)
            call.seek(0)
            files = [call.fileno(), self._result.fileno(), self._news.fileno()]
            told = [str(os.getpid()), str(files[2]), "call", f"{files[0]}:{files[1]}", "result"]
            self._process = subprocess.Popen(
                [sys.executable, child.__file__, *told],
                env=evaluator_environment(os.environ if environ is None else environ),
                stdin=subprocess.DEVNULL,
                pass_fds=files,
            )

    def result(self) -> object:
        """Waits for the call and returns its result, or raises what the call has raised."""
        code = self._process.wait()
        for file in (self._result, self._news):
            file.seek(0)
        written, words = self._result.read(), self._news.read().decode(errors="replace")
        found = result_of(written or None)
        if isinstance(found, Returned):
            return found.value
        error = error_of(found) if isinstance(found, Raised) else None
        raise error or EstimatorError(
            f"The evaluator ended with exit code {code} and without a result. {words}".rstrip()
        )

    def __enter__(self) -> Beside:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        self._files.close()


def _file(files: contextlib.ExitStack) -> BinaryIO:
    return cast(BinaryIO, files.enter_context(tempfile.TemporaryFile()))


# Of the workers' cluster: an evaluator is none of them.
_OF_THE_WORKERS = (
    "JAX_COORDINATOR_ADDRESS",
    "JAX_COORDINATOR_BIND_ADDRESS",
    "JAX_NUM_PROCESSES",
    "JAX_PROCESS_ID",
)


def evaluator_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment for the evaluator of a worker's cluster: the accelerators belong to the worker."""
    placed = cast("dict[str, object]", json.loads(environ["TF_CONFIG"]))
    role = {**placed, "task": {"type": EVALUATOR, "index": 0}}
    kept = {name: value for name, value in environ.items() if name not in _OF_THE_WORKERS}
    return {**kept, "TF_CONFIG": json.dumps(role), "JAX_PLATFORMS": "cpu"}
