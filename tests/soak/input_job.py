"""A worker of the jobs that `input.py` starts: it reads sources of all kinds, and is killed in the middle.

    input_job.py FOLDER shuffled|in-order KILL_AFTER    (0: it reads to the end)

Turn by turn it takes a step of each source. After some turns worker 0 writes down the position of each, with the rows
up to there; KILL_AFTER turns from the start, wherever the others are, one worker kills itself. In an elastic job the
position goes from the survivors to the replacement; there the sources are read one after the other, and worker 1 kills
itself in each.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import jax.numpy as jnp
import numpy as np

import replicax as rx
from replicax.contracts.group import current_group
from replicax.group.membership.launcher_news import elastic_range
from tests.data.row_kinds import OPEN

BATCH = 6
EVERY = 2  # turns between two writes
PAUSE_S = 0.1
SHUFFLE = {"seed": 11, "buffer": 18, "files": 3}


#: Kinds of batches that are made of rows of one of these sources, and the sources themselves.
GROUPED = {"packed": "TFRecord", "bucketed": "in memory"}
KINDS = [*OPEN, *GROUPED]


def batches_of(kind: str, folder: Path, shuffled: bool) -> rx.data.RowBatches:
    """Returns the batches of a source whose files are there already; a row is a number, -1 for none."""
    source = GROUPED.get(kind, kind)
    rows = OPEN[source](folder / "data" / source.replace(" ", "-"))
    rows = rows.shuffle(**SHUFFLE) if shuffled else rows
    if kind == "packed":
        longer = rows.map(lambda row: {"x": np.full(1 + int(row) % 3, row)})
        return longer.packed_batch(BATCH, {"x": 4}, threads=2).map(_first_of_each)
    if kind == "bucketed":
        return rows.bucketed_batch(lambda row: int(row) % 3, [1, 2], [BATCH, BATCH, BATCH], threads=2)
    return rows.batch(BATCH, threads=2)


def _first_of_each(batch: Any) -> np.ndarray:
    """Returns the first element of each row that is in a packed one, -1 in the place of the others."""
    return np.where((batch["x_segment_ids"] > 0) & (batch["x_positions"] == 0), batch["x"], -1)


def all_rows(rows: Any) -> Any:
    return rx.get_replica_context().all_gather(rows, axis=0)


def state_file(folder: Path, kind: str) -> Path:
    return folder / f"{kind.replace(' ', '-')}.json"


def fixed(folder: Path, shuffled: bool, kill_after: int) -> None:
    strategy = rx.MultiWorkerMirroredStrategy(start_timeout=120)
    reading: dict[str, tuple[Any, Any, list[list[int]]]] = {}
    for kind in KINDS:
        dataset, steps = strategy.distribute_dataset(batches_of(kind, folder, shuffled)), []
        if state_file(folder, kind).exists():
            saved = json.loads(state_file(folder, kind).read_text())
            steps = saved["steps"]
            dataset.set_state(saved["state"])
            if saved["ended"]:
                continue
        reading[kind] = (dataset, iter(dataset), steps)
    for turn in itertools.count(1):
        for kind, (dataset, iterator, steps) in list(reading.items()):
            if turn == kill_after and strategy.worker_index == turn % strategy.num_workers and kind == "CSV":
                os.kill(os.getpid(), signal.SIGKILL)
            batch = next(iterator, None)
            if batch is None:
                del reading[kind]
            else:
                steps.append(np.asarray(strategy.run(all_rows, args=(batch,))).tolist())
            if strategy.worker_index == 0 and (batch is None or turn % EVERY == 0):
                text = json.dumps({"state": dataset.get_state(), "steps": steps, "ended": batch is None})
                (folder / "new").write_text(text)
                (folder / "new").rename(state_file(folder, kind))
        if not reading:
            return


def elastic(folder: Path, shuffled: bool) -> None:
    whole = elastic_range()
    assert whole is not None
    range_ = rx.Elastic(min_workers=whole.fewest, max_workers=whole.most)
    strategy = rx.MultiWorkerMirroredStrategy(elastic=range_, start_timeout=120)
    datasets = {kind: strategy.distribute_dataset(batches_of(kind, folder, shuffled)) for kind in KINDS}
    with strategy.scope():
        counts = rx.Variable(np.zeros(len(datasets), np.int32), name="counts")  # steps of each source
        ended = rx.Variable(np.int32(0), name="ended")  # how many sources are
    strategy.join(rx.Checkpoint({"counts": counts, "ended": ended, "data": datasets}))

    def step(batch: Any, at: Any) -> Any:
        counts.assign_add(jnp.zeros(len(datasets), jnp.int32).at[at].add(1))
        return all_rows(batch)

    call = rx.function(lambda batch, at: strategy.run(step, args=(batch, at)))
    life = int(os.environ.get("REPLICAX_LIFE", "0"))
    group = current_group()
    is_victim = group.members[group.world.index] == 1
    log = folder / f"rows-{os.getpid()}.jsonl"
    for at, kind in list(enumerate(datasets))[int(ended.numpy()) :]:
        for batch in datasets[kind]:
            rows = strategy.experimental_local_results(call(batch, jnp.int32(at)))[0]
            done = int(np.asarray(counts.numpy())[at])
            with log.open("a") as file:
                file.write(json.dumps([kind, done - 1, np.asarray(rows).tolist()]) + "\n")
            if is_victim and life == at // 5 and done == 3 + at % 3 and at % 5 == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            # So that a replacement comes before the end.
            time.sleep(PAUSE_S if len(group.members) == whole.most else 10 * PAUSE_S)
        strategy.run(lambda: ended.assign_add(1))


if __name__ == "__main__":
    if elastic_range() is None:
        fixed(Path(sys.argv[1]), sys.argv[2] == "shuffled", int(sys.argv[3]))
    else:
        elastic(Path(sys.argv[1]), sys.argv[2] == "shuffled")
