"""The processes that `normal_ends.py` starts: `normal_ends_job.py KIND ENDING FOLDER [WORKERS]`.

Each says when it begins, trains a little, notes the time at its last line, and ends. What a script registers first with
`atexit` is called last: there it notes the threads that Python is about to end, and what they do. What a worker of a
notebook registers comes too early for that.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

STEPS, WIDTH, ROWS = 4, 3, 4
KNOWN = "the ending of this case"
CALLS = 3  # of a client of servers


class KnownError(Exception):
    """What a case ends with."""


def begin(folder: Path) -> None:
    """Says that this process is one whose end is watched."""
    _note(folder, "begin", "")


def end(folder: Path, ending: str) -> None:
    """Is the last line of a process."""
    _note(folder, "last", repr(time.time()))
    if ending == "exit":
        sys.exit(0)
    if ending == "exception":
        raise KnownError(KNOWN)


def _note(folder: Path, what: str, text: str) -> None:
    path = folder / f"{what}-{os.getpid()}"
    path.with_suffix(".new").write_text(text)
    path.with_suffix(".new").rename(path)


def _note_threads(folder: Path) -> None:
    """Notes the threads that are there when all else has ended."""
    frames = sys._current_frames()
    others = [each for each in threading.enumerate() if each is not threading.current_thread()]
    stacks = {each.name: traceback.format_stack(frames[each.ident]) for each in others if each.ident in frames}
    _note(folder, "threads", json.dumps(stacks))


def batches() -> Any:
    """Batches without end: a thread prepares the next ones when the script ends."""
    import numpy as np

    while True:
        yield np.ones((ROWS * 2 * 3, WIDTH), np.float32)


def train(strategy: Any) -> float:
    """Trains a few steps, and returns a number that the last one has computed."""
    import jax.numpy as jnp
    import numpy as np

    import replicax as rx

    with strategy.scope():
        w = rx.Variable(np.zeros(WIDTH, np.float32))

    def step(x: Any) -> Any:
        def loss() -> Any:
            return rx.compute_average_loss((x @ w.value - 1.0) ** 2)

        value, (gradient,) = rx.value_and_grad(loss, [w])()
        w.assign_sub(0.1 * gradient)
        return value

    run = rx.function(lambda batch: strategy.run(step, args=(batch,)))
    data = iter(strategy.distribute_dataset(batches()))
    for _ in range(STEPS):
        value = run(next(data))
    found = float(jnp.asarray(strategy.reduce("sum", value, axis=None)))
    kept.append((data, strategy))  # as the names of a script are
    return found


kept: list[Any] = []


def worker(folder: str, ending: str) -> float:
    """Is what each worker of a notebook, of a client or of `testing` calls."""
    import replicax as rx

    begin(Path(folder))
    found = train(rx.MultiWorkerMirroredStrategy(start_timeout=200))
    end(Path(folder), ending)
    return found


def fit_worker(folder: str, ending: str) -> float:
    """Is the same with Keras."""
    import keras
    import numpy as np

    import replicax as rx

    begin(Path(folder))
    strategy = rx.MultiWorkerMirroredStrategy(start_timeout=200)
    with strategy.scope():
        model = keras.Sequential([keras.Input((WIDTH,)), keras.layers.Dense(1)])
        model.compile(optimizer="sgd", loss="mse", jit_compile=True)
    rows = ROWS * strategy.num_replicas_in_sync
    x, y = np.ones((4 * rows, WIDTH), np.float32), np.ones((4 * rows, 1), np.float32)
    history = model.fit(x, y, batch_size=rows, epochs=1, verbose=0)
    end(Path(folder), ending)
    return float(history.history["loss"][-1])


# Kinds of scripts.


def fixed(folder: Path, ending: str, workers: int) -> None:
    """A worker of a job of fixed size."""
    import replicax as rx

    train(rx.MultiWorkerMirroredStrategy(start_timeout=200))


def preemptible(folder: Path, ending: str, workers: int) -> None:
    """The same, and it would save if it was preempted."""
    import numpy as np

    import replicax as rx

    strategy = rx.MultiWorkerMirroredStrategy(start_timeout=200)
    with strategy.scope():
        steps = rx.Variable(np.zeros((), np.int32))
    handler = rx.PreemptionCheckpointHandler(None, rx.Checkpoint(steps=steps), folder / "saved")
    handler.run(lambda: train(strategy))
    kept.append(handler)


def elastic(folder: Path, ending: str, workers: int) -> None:
    """A worker of a job where workers come and go."""
    import replicax as rx

    train(rx.MultiWorkerMirroredStrategy(start_timeout=200, elastic=rx.Elastic(1)))


def islands(folder: Path, ending: str, workers: int) -> None:
    """An island."""
    import replicax as rx

    train(rx.LocalSGDStrategy(every=2, start_timeout=200))


def servers(folder: Path, ending: str, workers: int) -> None:
    """The coordinator of parameter servers."""
    import jax.numpy as jnp
    import numpy as np

    import replicax as rx

    strategy = rx.ParameterServerStrategy(dashboard=False, start_timeout=200)
    with strategy.scope():
        w = rx.Variable(np.zeros(WIDTH, np.float32))
    coordinator = rx.coordinator.ClusterCoordinator(strategy)
    data = iter(coordinator.create_per_worker_dataset(batches))

    @rx.function
    def step(iterator: Any) -> Any:
        x = next(iterator)
        value, (gradient,) = rx.value_and_grad(lambda: jnp.mean((x @ w.value - 1.0) ** 2), [w])()
        w.assign_sub(0.1 * gradient)
        return value

    results = [coordinator.schedule(step, args=(data,)) for _ in range(STEPS)]
    coordinator.join()
    kept.append((coordinator, data, results))


def notebook(folder: Path, ending: str, workers: int) -> None:
    """A notebook: its workers end as the case says, and this script after them by its last line."""
    _launched(worker, folder, ending, workers)


def notebook_fit(folder: Path, ending: str, workers: int) -> None:
    """A notebook whose workers call `fit`."""
    _launched(fit_worker, folder, ending, workers)


def _launched(function: Any, folder: Path, ending: str, workers: int) -> None:
    import replicax as rx

    try:
        rx.notebook.launch(function, (str(folder), ending), workers=workers)
    except KnownError:
        if ending != "exception":
            raise


def testing(folder: Path, ending: str, workers: int) -> None:
    """A test in several processes."""
    import replicax as rx

    try:
        rx.testing.run_workers(worker, workers=workers, timeout=200, folder=str(folder), ending=ending)
    except rx.errors.WorkersFailedError as error:
        if ending != "exception" or KNOWN not in str(error):
            raise


def client(folder: Path, ending: str, workers: int) -> None:
    """A client of standalone servers, for which each call starts fresh processes."""
    import replicax as rx

    strategy = rx.MultiWorkerMirroredStrategy(remote_cluster=json.loads(os.environ["SERVERS"]), start_timeout=200)
    for _ in range(CALLS):
        try:
            strategy.remote(worker, str(folder), ending)
        except KnownError:
            if ending != "exception":
                raise


#: Those whose workers end as the case says; of the others the scripts do.
OF_CALLS = ("notebook", "notebook_fit", "testing", "client")
KINDS = {
    each.__name__: each
    for each in (fixed, preemptible, elastic, islands, servers, notebook, notebook_fit, testing, client)
}


def main() -> None:
    kind, ending, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    atexit.register(_note_threads, folder)
    begin(folder)
    KINDS[kind](folder, ending, int(sys.argv[4]))
    end(folder, "last" if kind in OF_CALLS else ending)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))
    from tests.soak import normal_ends_job  # Functions that travel are found by their module's name.

    normal_ends_job.main()
