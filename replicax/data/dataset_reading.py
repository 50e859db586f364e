"""The contract of how a worker reads a dataset; `auto_shard.py` chooses one of those that keep it."""

from __future__ import annotations

import abc
from collections.abc import Generator

import numpy as np

from replicax.data.input_steps import InputStep, StepByStep
from replicax.data.input_times import InputTimes
from replicax.data.position import Position
from replicax.data.shard_report import ShardSummary


class DatasetReading(abc.ABC):
    """How this worker reads a dataset."""

    shares_batches = False  # whether all workers read the same global batches
    times: InputTimes | None = None  # of the loop that was opened last, if the reading notes some

    @abc.abstractmethod
    def num_shards(self, position: Position) -> int:
        """Returns in how many shards a pass that begins at a position reads the dataset."""

    @abc.abstractmethod
    def steps(self, agreement: StepByStep, position: Position) -> Generator[InputStep]:
        """Opens the source and yields the steps of a loop that follow a position, in one pass or several."""

    @abc.abstractmethod
    def whole(self, position: Position, replicas: int) -> Generator[InputStep]:
        """The same with global batches; for a reading of one worker."""

    @abc.abstractmethod
    def summarize(self, agreement: StepByStep) -> tuple[ShardSummary, np.ndarray | None]:
        """Reads the source; returns what this worker reads in a pass, and digests of all rows of the source."""
        # Only the first worker's digests count. They are None where one worker cannot read all rows.
