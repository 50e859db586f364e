"""Large variables are restored one after the other, after a check of everything."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
import pytest

import replicax as rx
from replicax.checkpoint import restore_variables, sequential_restore
from replicax.contracts.variable_access import array_of
from replicax.errors import CheckpointError
from tests.weights.test_memory import bytes_on_devices

SHAPE, COUNT = (64, 4096), 6
LARGEST = 64 * 4096 * 4


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch) -> dict[str, rx.Variable]:
    monkeypatch.setattr(sequential_restore, "_LARGE_BYTES", LARGEST)
    with rx.FullyShardedStrategy(8).scope():
        made = {f"v{i}": rx.Variable(np.full(SHAPE, i + 1, np.float32)) for i in range(COUNT)}
        return made | {"small": rx.Variable(3.0), "n": rx.Variable(7)}


def zeroed(variables: dict[str, rx.Variable]) -> None:
    for variable in variables.values():
        variable.assign(np.zeros(variable.shape))


def test_no_device_has_more_than_its_part_and_one_piece(
    variables: dict[str, rx.Variable], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    checkpoint = rx.Checkpoint(**variables)
    path = checkpoint.write(tmp_path / "c")
    zeroed(variables)
    homes = {name: array_of(variable).sharding for name, variable in variables.items()}
    before, most = bytes_on_devices(), [0]
    assign = rx.Variable.assign

    def noting(self, value, *args):
        now = bytes_on_devices()  # The old value is there, and the new one.
        most.append(max(now[device] - before[device] for device in now))
        return assign(self, value, *args)

    monkeypatch.setattr(rx.Variable, "assign", noting)
    status = checkpoint.restore(path)
    status.assert_consumed()
    assert max(most) <= LARGEST / 8 + 1000
    for name, variable in variables.items():
        assert array_of(variable).sharding == homes[name]
    for i in range(COUNT):
        np.testing.assert_array_equal(variables[f"v{i}"].numpy(), np.full(SHAPE, i + 1))
    assert (float(variables["small"].numpy()), int(variables["n"].numpy())) == (3.0, 7)


def test_variables_without_a_checkpoint_object_get_all_their_values(variables: dict[str, rx.Variable], tmp_path: Path):
    path = rx.Checkpoint(**variables).write(tmp_path / "c")
    zeroed(variables)
    restore_variables(path, variables)
    assert [float(variable.numpy().flat[-1]) for variable in variables.values()] == [*range(1, COUNT + 1), 3.0, 7.0]


def test_damage_anywhere_is_found_before_anything_changes(variables: dict[str, rx.Variable], tmp_path: Path):
    path = rx.Checkpoint(**variables).write(tmp_path / "c")
    zeroed(variables)
    part = next(part for part in sorted(path.glob("*-v5/*")) if not part.name.startswith("."))
    part.write_bytes(part.read_bytes()[::-1] + b"")
    part.write_bytes(b"x" + part.read_bytes()[1:])
    for restore in (rx.Checkpoint(**variables).restore, lambda path: restore_variables(path, variables)):
        with pytest.raises(CheckpointError, match="has other contents"):
            restore(path)
        assert all(not np.any(variable.numpy()) for variable in variables.values())


def test_a_disk_that_fails_between_is_told(
    variables: dict[str, rx.Variable], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = rx.Checkpoint(**variables).write(tmp_path / "c")
    read, calls = sequential_restore.read_arrays, []

    def failing(directory, wanted, metadata, verify):
        calls.append(wanted)
        if len(calls) == 3:
            raise CheckpointError("The disk is gone.")
        return read(directory, wanted, metadata, verify)

    monkeypatch.setattr(sequential_restore, "read_arrays", failing)
    with pytest.raises(CheckpointError, match=r"The disk is gone\. 2 of 8 large variables have been restored"):
        rx.Checkpoint(**variables).restore(path)


def test_variables_are_read_by_name_from_a_part_of_a_checkpoint(variables: dict[str, rx.Variable], tmp_path: Path):
    path = rx.Checkpoint(**variables).write(tmp_path / "c")
    zeroed(variables)
    restore_variables(path, {"v1": variables["v1"], "v2": variables["v2"]}, partial=True)
    np.testing.assert_array_equal(variables["v2"].numpy(), np.full(SHAPE, 3))
    assert not np.any(variables["v3"].numpy())
    assert jax.process_count() == 1
