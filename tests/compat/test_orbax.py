from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest

from replicax.compat.orbax import restore_files, save_files
from tests.compat.guards import needs

NAMES = [
    "PyTreeCheckpointHandler",
    "args.PyTreeSave",
    "args.PyTreeRestore",
    "PLACEHOLDER",
    "RestoreArgs",
    "ArrayRestoreArgs",
]


@pytest.mark.parametrize("name", NAMES)
def test_orbax_still_has(name):
    found = ocp
    for part in name.split("."):
        found = needs("orbax-checkpoint", f"orbax.checkpoint.{name}", lambda: getattr(found, part))  # noqa: B023


def test_a_part_of_what_was_written_is_read_where_it_is_wanted(tmp_path):
    arrays = {"a": jnp.arange(4.0), "b": np.arange(3), "c": jnp.ones(2)}
    save_files(tmp_path / "arrays", arrays)
    here = jax.sharding.SingleDeviceSharding(jax.devices()[1])
    wanted = {
        "a": jax.ShapeDtypeStruct((4,), np.float32, sharding=here),
        "b": jax.ShapeDtypeStruct((3,), np.int64),
    }
    found = restore_files(tmp_path / "arrays", ["a", "b", "c"], wanted)
    assert found.keys() == {"a", "b"}
    assert found["a"].sharding == here
    assert isinstance(found["b"], np.ndarray)
    np.testing.assert_array_equal(found["a"], arrays["a"])
    np.testing.assert_array_equal(found["b"], arrays["b"])


def test_each_array_has_a_folder_of_its_own(tmp_path):
    save_files(tmp_path / "arrays", {"a": jnp.ones(2), "b": jnp.ones(2)})
    assert {"a", "b"} <= {path.name for path in (tmp_path / "arrays").iterdir() if path.is_dir()}
