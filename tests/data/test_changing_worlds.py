"""Random changes of membership: each step has the rows of the undisturbed run, each of them once."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import replicax.contracts.group as groups
from replicax.contracts.group import Group
from replicax.data import (
    DistributedDataset,
    DistributedDatasetFromFunction,
    FileSource,
    InputOptions,
    InputWorkers,
    Rows,
)
from replicax.data.batch_placement import Form
from replicax.data.batch_split import SplitBatch
from replicax.data.receivers import Receivers
from replicax.group.renewal import renewed
from replicax.values import PerReplica

ROWS = 60
FEW = settings(max_examples=40, deadline=None)


def put(split: SplitBatch, receivers: Receivers) -> dict[str, Any]:
    """Puts a worker's parts on one device, with what a test must know of them; the others' are not here."""
    placed = jax.tree.map(lambda leaf: PerReplica(jnp.asarray(np.array(leaf))), split.parts)
    return {"parts": placed, "place": jnp.array([split.first, split.replicas])}


@dataclasses.dataclass
class Member:
    """A worker: its world, and how it sees it."""

    number: int
    present: Receivers
    dataset: Any = None
    iterator: Any = None
    batch: Any = None


class Seen(Group):
    """The group as the member whose place this process has taken sees it."""

    may_change = True

    def __init__(self, job: Job):
        super().__init__()
        self._job = job

    @property
    def number(self) -> int:
        return self._job.current.number

    def renewed(self, tree: Any) -> Any:
        return renewed(tree)


class Job:
    """Workers in one process, which takes the place of one after the other.

    Attributes:
        number: The number of the present world, which a member knows when it has entered it.
        members: The members.
        replicas: How many replicas each of them has.
        current: The member whose place this process has taken.
    """

    current: Member

    def __init__(self, make: Callable[[Receivers, Callable[[], Receivers]], Any], replicas: list[int]):
        self.number = 1
        self._make = make
        self.members: list[Member] = []
        self.replicas: list[int] = []
        self._opened: list[Any] = []
        for each in replicas:
            self.join(each)

    def present(self, index: int) -> Receivers:
        names = tuple(f"worker:{i}" for i in range(len(self.replicas)))
        workers = InputWorkers(index, names, tuple(self.replicas))
        return Receivers(sum(self.replicas), lambda _: None, workers)  # type: ignore[arg-type, return-value]

    def join(self, replicas: int) -> Member:
        self.replicas.append(replicas)
        member = Member(self.number, self.present(len(self.replicas) - 1))
        self.members.append(member)
        return member

    def enter_all(self) -> None:
        """Lets all members see the present world."""
        for index, member in enumerate(self.members):
            member.number, member.present = self.number, self.present(index)

    def close(self) -> None:
        for iterator in self._opened:
            iterator.close()

    def open(self, member: Member, state: Any = None) -> None:
        self.current = member
        member.dataset = self._make(member.present, lambda: member.present)
        if state is not None:
            member.dataset.set_state(json.loads(json.dumps(state)))
        member.iterator = member.dataset._iterator(Form(put, everywhere=False))
        self._opened.append(member.iterator)

    def next(self, member: Member) -> None:
        self.current = member
        member.batch = next(member.iterator, None)
        assert renewed(member.batch) is member.batch  # It is of the present world, whenever it was read.

    def rows(self) -> list[int]:
        """Returns the rows of a call of all members, in the order of the replicas."""
        found: dict[int, list[int]] = {}
        counts = set()
        for member in self.members:
            self.current = member
            batch = renewed(member.batch)  # The loop keeps the batch as it got it, through all worlds.
            assert renewed(batch) is batch
            first, replicas = batch["place"].tolist()
            counts.add(replicas)
            for i, part in enumerate(np.asarray(batch["parts"].stacked)):
                assert first + i not in found
                found[first + i] = part.tolist()
        assert counts == {len(found)}
        assert sorted(found) == list(range(len(found)))
        return [row for _, part in sorted(found.items()) for row in part]

    def lose(self, index: int) -> None:
        self.members.pop(index).iterator.close()
        self.replicas.pop(index)

    def change(self, draw: Any, can_join: bool) -> list[Member]:
        """Loses and takes in members; returns the new ones. Members notice in `enter_all`."""
        self.number += 1
        for _ in range(draw(st.integers(0, 2))):
            if len(self.members) > 1:
                self.lose(draw(st.integers(0, len(self.members) - 1)))
        if can_join and len(self.members) < 4 and draw(st.booleans()):
            return [self.join(draw(st.integers(1, 2)))]
        return []


def batches(size: int) -> list[np.ndarray]:
    return [np.arange(i, min(i + size, ROWS)) for i in range(0, ROWS, size)]


def one_shot(size: int) -> Iterator[np.ndarray]:
    memory = np.zeros(size, int)
    for batch in batches(size):
        memory[: len(batch)] = batch
        yield memory[: len(batch)]


def files(size: int) -> FileSource:
    parts = np.split(np.arange(ROWS), [7, 7, 30, 41])
    return FileSource(range(len(parts)), lambda file: parts[file], batch_size=size)


def dataset_of(kind: str, size: int, options: InputOptions) -> Callable[[Receivers, Callable[[], Receivers]], Any]:
    def make(first: Receivers, anew: Callable[[], Receivers]) -> Any:
        common = {"num_replicas": first.num_replicas, "mesh_for": first.mesh_for, "options": options}
        common |= {"workers": first.workers, "anew": anew}
        if kind == "function":
            return DistributedDatasetFromFunction(
                lambda context: batches(size // context.num_replicas_in_sync), **common
            )
        source: dict[str, Callable[[], Any]] = {
            "arrays": lambda: np.arange(ROWS),
            "files": lambda: files(size),
            "one-shot": lambda: one_shot(size),
            "two epochs": lambda: Rows(range(ROWS)).batch(size, threads=1).repeat(2),
        }
        made = source.get(kind, lambda: lambda: iter(batches(size)))()
        return DistributedDataset(made, batch_size=size if kind == "arrays" else None, **common)

    return make


KINDS = ["arrays", "callable", "one-shot", "files", "function", "two epochs"]


@FEW
@given(data=st.data(), kind=st.sampled_from(KINDS), prefetch=st.sampled_from([0, 1, 3]))
@pytest.mark.parametrize("remainder", ["exact", "drop"])
def test_random_changes(data, kind, prefetch, remainder):
    draw = data.draw
    size = 12 if kind == "function" else draw(st.integers(1, 13), label="size")
    replicas = draw(st.lists(st.integers(1, 2), min_size=1, max_size=3), label="replicas")
    if kind == "function":  # Its global batches must divide by each number of replicas.
        replicas = [1] * draw(st.integers(1, 4))
    options = InputOptions(prefetch=prefetch, remainder=remainder)
    job = Job(dataset_of(kind, size, options), replicas)
    with contextlib.closing(job), pytest.MonkeyPatch.context() as patch:
        patch.setattr(groups, "_present", Seen(job))
        job.enter_all()
        for member in job.members:
            job.open(member)
        for step, expected in enumerate(batches(size) * (2 if kind == "two epochs" else 1)):
            found = job_step(job, draw, can_join=kind != "one-shot")
            assert found == kept(expected, job, remainder), step
        for member in job.members:
            job.next(member)
            assert member.batch is None


def kept(batch: np.ndarray, job: Job, remainder: str) -> list[int]:
    replicas, rows = sum(job.replicas), len(batch)
    dropped = rows % replicas if remainder == "drop" and rows >= replicas else 0
    return batch[: rows - dropped].tolist()


def job_step(job: Job, draw: Any, can_join: bool) -> list[int]:
    """Makes a step with random changes: before it, while some members have its batch already, and in the call."""
    for _ in range(draw(st.integers(0, 2), label="changes before the step")):
        # A newcomer gets the state of a member between two steps.
        state = job.members[0].iterator.get_state()
        newcomers = job.change(draw, can_join)
        job.enter_all()
        for member in newcomers:
            job.open(member, state)
    fast = draw(st.integers(0, len(job.members)), label="have the batch when the world changes")
    slow = job.members[fast:]
    for member in job.members[:fast]:
        job.next(member)
    if draw(st.booleans(), label="a loss"):
        job.change(draw, can_join=False)
        job.enter_all()
    for member in slow:
        if member in job.members:
            job.next(member)
    for _ in range(draw(st.integers(0, 2), label="losses in the call")):
        job.rows()
        job.change(draw, can_join=False)
        job.enter_all()
    return job.rows()
