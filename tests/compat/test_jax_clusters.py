"""The kind of cluster that JAX finds by its own variables."""

from __future__ import annotations

import pytest

import replicax.compat.jax_clusters  # noqa: F401  # It adds the kind.
from tests.compat.guards import needs


def _detect(monkeypatch: pytest.MonkeyPatch, **environ: str) -> object:
    for name in ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    from jax._src.clusters import ClusterEnv

    detect = needs(
        "jax",
        "ClusterEnv.auto_detect_unset_distributed_params",
        lambda: ClusterEnv.auto_detect_unset_distributed_params,
    )
    return detect(None, None, None, None, None, 10)


def test_jax_finds_the_cluster_of_its_variables_before_any_other(monkeypatch: pytest.MonkeyPatch):
    for name, value in {"JOB_ID": "1", "STEP_NODELIST": "a", "NTASKS": "8", "PROCID": "7", "LOCALID": "7"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    found = _detect(monkeypatch, JAX_COORDINATOR_ADDRESS="machine-a:2222", JAX_NUM_PROCESSES="2", JAX_PROCESS_ID="1")
    assert found == ("machine-a:2222", 2, 1, None)


def test_without_all_of_them_it_is_none(monkeypatch: pytest.MonkeyPatch):
    assert _detect(monkeypatch, JAX_NUM_PROCESSES="2", JAX_PROCESS_ID="1") == (None, None, None, None)
