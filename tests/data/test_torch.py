"""torch is no dependency of ours: these tests run where it is installed."""

from __future__ import annotations

import numpy as np
import pytest

from replicax.data import DistributedDataset
from replicax.data.batches import host_batch
from replicax.data.sources import host_batches
from replicax.errors import ArgumentError, BatchError

torch = pytest.importorskip("torch")
DataLoader, TensorDataset = torch.utils.data.DataLoader, torch.utils.data.TensorDataset


@pytest.mark.parametrize("gradient", [False, True])
def test_tensors_become_numpy(gradient):
    batch = host_batch({"x": torch.ones(3, 2, requires_grad=gradient)}, "Batch 0")
    assert isinstance(batch["x"], np.ndarray)
    assert batch["x"].tolist() == [[1, 1]] * 3


def test_memory_is_shared():
    tensor = torch.zeros(4)
    batch = host_batch(tensor, "Batch 0")
    tensor[2] = 7.0
    assert batch[2] == 7.0


def test_bfloat16_keeps_its_values():
    batch = host_batch(torch.tensor([1.5, -2.0], dtype=torch.bfloat16), "Batch 0")
    assert batch.dtype == "bfloat16"
    assert batch.tolist() == [1.5, -2.0]


def test_sparse_tensors_are_told_why():
    tensor = torch.sparse_coo_tensor([[0]], [1.0], (2,), check_invariants=True)
    with pytest.raises(BatchError, match="this Tensor cannot become a NumPy array"):
        host_batch(tensor, "Batch 0")


def test_tensors_are_arrays_with_a_batch_size():
    batches = host_batches((torch.arange(5), np.arange(5)), batch_size=3)
    assert [batch[0].tolist() for batch in batches] == [[0, 1, 2], [3, 4]]


@pytest.mark.parametrize("prefetch_workers", [0, 2])
def test_a_loader_passes_as_often_as_one_likes(mesh_for, rows_of, prefetch_workers):
    context = "forkserver" if prefetch_workers else None
    data = TensorDataset(torch.arange(10.0).reshape(10, 1), torch.arange(10))
    loader = DataLoader(data, batch_size=4, num_workers=prefetch_workers, multiprocessing_context=context)
    dataset = DistributedDataset(loader, num_replicas=2, mesh_for=mesh_for)
    assert len(dataset) == 3
    for _ in range(2):
        steps = list(dataset)
        assert np.concatenate([rows_of(step[0]) for step in steps]).ravel().tolist() == list(range(10))
        assert np.concatenate([rows_of(step[1]) for step in steps]).tolist() == list(range(10))


def test_a_loader_of_unknown_length():
    class EveryRow(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(range(10))

    batches = host_batches(DataLoader(EveryRow(), batch_size=4))
    assert [len(batch) for batch in batches] == [4, 4, 2]
    with pytest.raises(TypeError):
        len(batches)


def test_a_loader_has_its_own_batch_size():
    with pytest.raises(ArgumentError, match="DataLoader already yields batches"):
        host_batches(DataLoader(torch.arange(4)), 4)
