"""Recorded environments: what each platform sets, and who a process finds that it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from replicax.cluster import PRECEDENCE, ClusterSpec, check_synchronous, detect_cluster
from replicax.errors import ClusterError

RECORDINGS = sorted((Path(__file__).parent / "environments").glob("*.json"))


@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda path: path.stem)
def test_a_recorded_environment_tells_who_this_is(recording: Path):
    record = json.loads(recording.read_text())
    found = detect_cluster(record["environ"])
    config = found.config
    assert found.winner == record["winner"]
    assert len(found.conflicts) == record["conflicts"]
    assert [candidate.name for candidate in found.candidates] == [kind.name for kind in PRECEDENCE]
    told = {name: getattr(config, name) for name in record["config"] if name != "task"}
    told["task"] = str(config.task) if config.task else None
    assert told == record["config"]
    assert str(config) in found.report()


@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda path: path.stem)
def test_every_recorded_cluster_can_train_or_says_why_not(recording: Path):
    config = detect_cluster(json.loads(recording.read_text())["environ"]).config
    if "ps" in config.spec.jobs or recording.stem == "mpich":
        with pytest.raises(ClusterError, match=r"ps is not allowed in synchronous|Set JAX_COORDINATOR_ADDRESS"):
            check_synchronous(config)
    else:
        check_synchronous(config)


def test_the_address_of_jax_and_ours_agree_under_open_mpi(monkeypatch):
    """JAX's own reading of the same variables is the oracle."""
    ompi = pytest.importorskip("jax._src.clusters.ompi_cluster").OmpiCluster
    for name in ("openmpi_4", "openmpi_4_ipv6"):
        environ = json.loads((Path(__file__).parent / "environments" / f"{name}.json").read_text())["environ"]
        for variable, value in environ.items():
            monkeypatch.setenv(variable, value)
        theirs = ompi.get_coordinator_address(None, None).replace("[", "").replace("]", "")
        ours = detect_cluster(environ).config
        assert ours.coordinator_address.replace("[", "").replace("]", "") == theirs
        assert (ours.process_id, ours.num_processes) == (ompi.get_process_id(), ompi.get_process_count())


def test_a_slurm_step_lists_every_task():
    environ = json.loads((Path(__file__).parent / "environments" / "slurm_multi_node.json").read_text())["environ"]
    hosts = ["gpu08:8888", "gpu08:8889", "gpu09:8888", "gpu09:8889", "gpu10:8888", "gpu10:8889", "login1:8888"]
    assert detect_cluster(environ).config.spec == ClusterSpec({"worker": hosts})
