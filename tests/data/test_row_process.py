"""Rows that are read and mapped in processes beside the training."""

from __future__ import annotations

import gc
import os
import threading

import numpy as np
import pytest

import replicax as rx
from replicax.errors import ArgumentError, BatchError, DataError


def augmented(row, draw):
    print("What is printed is no answer.")
    return row["x"] + draw.uniform(), np.int32(os.getpid())


def test_the_rows_are_those_of_threads_in_each_epoch(tmp_path):
    np.save(tmp_path / "x.npy", np.arange(40.0).reshape(20, 2))
    rows = rx.data.read_numpy({"x": str(tmp_path / "x.npy")}).random_map(augmented, seed=3).shuffle(seed=1)
    in_threads, in_processes = rows.batch(8), rows.batch(8, processes=2)
    workers = set()
    for _ in range(2):
        for expected, found in zip(in_threads, in_processes, strict=True):
            assert np.array_equal(found[0], expected[0])
            workers |= set(found[1].tolist())
    assert os.getpid() not in workers
    assert len(workers) <= 2  # They stay for the second epoch.
    del in_processes
    gc.collect()
    for each in workers:
        with pytest.raises(ProcessLookupError):
            os.kill(each, 0)


def test_what_goes_wrong():
    def read(row):
        if row == 3:
            raise ValueError("three")
        if row == 9:
            os._exit(7)
        return row

    numbers = rx.data.Rows(range(8)).map(read)
    with pytest.raises(DataError, match="record 3: ValueError: three"):
        list(numbers.batch(4, processes=1))
    left = numbers.batch(4, processes=1, on_error="skip")
    assert [batch.tolist() for batch in left] == [[0, 1, 2, 4], [5, 6, 7]]
    with pytest.raises(BatchError, match="has ended with exit code 7"):
        list(rx.data.Rows([9]).map(read).batch(4, processes=1))
    lock = threading.Lock()
    with pytest.raises(ArgumentError, match=r"cannot be sent to another process.*lock"):
        list(rx.data.Rows([9]).map(lambda row: (lock, row)[1]).batch(4, processes=1))
    with pytest.raises(ArgumentError, match="Give `threads` or `processes`"):
        numbers.batch(4, threads=1, processes=1)
