"""Several workers in one process: a thread each, and a store in memory instead of the coordination service."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from replicax.data import InputOptions, InputWorkers
from replicax.data.auto_shard import DatasetReading, FunctionReading, choose_reading
from replicax.data.batch_placement import ROWS, VALUES
from replicax.data.batch_split import split_batch
from replicax.data.input_steps import InputStep, StepByStep
from replicax.data.position import Position
from replicax.data.receivers import Receivers
from replicax.data.sources import host_batches
from replicax.data.worker_channel import PassNumbers, WorkerChannel
from tests.cluster.fake_store import FakeStore


class Team:
    """Workers with so many replicas each."""

    def __init__(self, replicas: Sequence[int]):
        self.store = FakeStore()
        names = tuple(f"worker:{i}" for i in range(len(replicas)))
        self.workers = [InputWorkers(i, names, tuple(replicas), self.store) for i in range(len(replicas))]
        self._numbers = [PassNumbers() for _ in replicas]

    def each(self, function: Callable[[InputWorkers], Any]) -> list[Any]:
        """Returns what the function returns, or raises, on each worker."""

        def caught(workers: InputWorkers) -> Any:
            try:
                return function(workers)
            except Exception as error:
                return error

        with ThreadPoolExecutor(len(self.workers)) as pool:
            return list(pool.map(caught, self.workers))

    def channel(self, workers: InputWorkers, timeout_s: float = 20) -> WorkerChannel:
        return WorkerChannel(workers, timeout_s, self._numbers[workers.index])

    def steps(
        self,
        reading_of: Callable[[InputWorkers], DatasetReading],
        options: InputOptions,
        position: Position | None = None,
        everywhere: bool = False,
        most: int | None = None,
    ) -> list[Any]:
        """Returns each worker's steps of a pass: all of them, or the first `most`; or its error."""

        def run(workers: InputWorkers) -> list[InputStep]:
            time.sleep(0.001 * (workers.index % 2))
            channel = self.channel(workers, options.worker_timeout) if workers.count > 1 else None
            agreement = step_by_step(workers, channel, options)
            agreement.form = ROWS if everywhere else VALUES
            steps = []
            for step in reading_of(workers).steps(agreement, (position or Position()).at_start()):
                steps.append(step)
                if len(steps) == most:
                    break
            agreement.close()
            return steps

        return self.each(run)


def steps_and_position(
    batches: Any,
    replicas: Sequence[int],
    options: InputOptions,
    position: Position | None = None,
    most: int | None = None,
) -> tuple[list[list[Any] | None], Position]:
    """Returns for each step the part of each replica, where workers have so many, and the position after them."""
    team = Team(replicas)
    readings = [reading([batches] * len(replicas), options)(workers) for workers in team.workers]
    position = position or Position()
    found = team.steps(lambda workers: readings[workers.index], options, position, most=most)
    for each in found:
        if isinstance(each, Exception):
            raise each
    # What the loop counts, it counts in the position that the reading has noted its dealing in.
    after = position.at_start()
    readings[0]._read(after, 0, len(replicas)).close()
    for step in found[0]:
        if step.begins is not None:
            after.go_on(step.begins)
        after.add(readings[0].num_shards(after), step.rows_read)
    return parts(found), Position.of(json.loads(json.dumps(after.state())))


def step_by_step(workers: InputWorkers, channel: WorkerChannel | None, options: InputOptions) -> StepByStep:
    """Returns the agreement of workers whose steps go to no devices."""
    return StepByStep(Receivers(sum(workers.replicas), lambda _: None, workers), channel, options)


def reading(
    sources: Sequence[Any], options: InputOptions, batch_size: int | None = None
) -> Callable[..., DatasetReading]:
    """Returns how each worker reads its source."""

    def of(workers: InputWorkers) -> DatasetReading:
        source = sources[workers.index]
        return choose_reading(source, host_batches(source, batch_size), batch_size, options, workers)

    return of


def function_reading(sources: Sequence[Any], options: InputOptions) -> Callable[..., DatasetReading]:
    def of(workers: InputWorkers) -> DatasetReading:
        return FunctionReading(lambda context: sources[context.input_pipeline_id], workers, options)

    return of


def parts(steps_of_workers: Sequence[Sequence[InputStep]]) -> list[list[Any] | None]:
    """Returns for each step the part of each replica, put together from what the workers have; None: dropped."""
    assembled: list[list[Any] | None] = []
    for steps in zip(*steps_of_workers, strict=True):
        splits = [step.data for step in steps]
        if splits[0] is None:
            assert splits == [None] * len(splits)
            assembled.append(None)
            continue
        assert len({split.replicas for split in splits}) == 1
        found: dict[int, Any] = {}
        for split in splits:
            count = len(jax.tree.leaves(split.parts)[0])
            for i in range(count):
                found[split.first + i] = jax.tree.map(lambda leaf, i=i: leaf[i].tolist(), split.parts)
        assert sorted(found) == list(range(splits[0].replicas))
        assembled.append([found[i] for i in range(splits[0].replicas)])
    return assembled


def parts_alone(batches: Sequence[np.ndarray], replicas: int, remainder: str) -> list[list[Any] | None]:
    """Returns the same for a single process that has these global batches."""
    splits = [split_batch(batch, replicas, remainder) for batch in batches]
    return [None if split is None else [part.tolist() for part in split.parts] for split in splits]
