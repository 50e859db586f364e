"""Which replicas have devices where."""

from typing import NamedTuple

import jax
import numpy as np
import pytest

from replicax.strategies.replica_devices import ReplicaProcesses


class Device(NamedTuple):
    process_index: int
    id: int


def grid(processes: list) -> np.ndarray:
    shape, flat = np.shape(processes), np.ravel(processes)
    devices = np.empty(len(flat), dtype=object)
    devices[:] = [Device(int(process), i) for i, process in enumerate(flat)] if len(flat) > 1 else [Device(0, 0)]
    return devices.reshape(shape)


@pytest.mark.parametrize(
    ("processes", "read", "fed", "own"),
    [
        ([0, 0, 1, 1], (2, 2), ((0, 2), (2, 4)), ((0, 1), (2, 3))),
        ([[0, 0], [1, 1]], (1, 1), ((0, 1), (1, 2)), ((0,), (1,))),
        ([[0, 1], [0, 1]], (1, 1), ((0, 2), (0, 2)), ((0, 1), (0, 1))),
        ([[0, 1, 0, 1]], (1, 0), ((0, 1), (0, 1)), ((0,), (0,))),
        ([0, 1, 0], (2, 1), ((0, 3), (1, 2)), ((0, 2), (1,))),
    ],
)
def test_each_replica_is_read_for_once_and_fed_wherever_it_is(monkeypatch, processes, read, fed, own):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    for process in (0, 1):
        monkeypatch.setattr(jax, "process_index", lambda process=process: process)
        found = ReplicaProcesses(grid(processes))
        assert found.readers_and_fed() == (read, fed)
        assert found.local == own[process]
        assert all(found.device_here(replica).process_index == process for replica in found.local)


def test_a_replica_is_led_by_the_process_of_its_first_device(monkeypatch):
    found = []
    for process in (0, 1):
        monkeypatch.setattr(jax, "process_index", lambda process=process: process)
        found.append(ReplicaProcesses(grid([[0, 1], [1, 0]])).led)
    assert found == [(0,), (1,)]
    assert ReplicaProcesses(grid([[0, 1], [1, 0]])).may_share
    assert not ReplicaProcesses(grid([0, 1])).may_share
