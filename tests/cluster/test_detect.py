"""Which source wins, why the others do not, and what is said when two of them disagree."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import pytest

from replicax.cluster import detect_cluster
from replicax.errors import ClusterError

# Every source says something that a single process of four could be told; in the order of precedence.
SOURCES = {
    "REPLICAX_*": {"REPLICAX_COORDINATOR": "h:1", "REPLICAX_NUM_PROCESSES": "4", "REPLICAX_PROCESS_ID": "1"},
    "TF_CONFIG": {
        "TF_CONFIG": json.dumps(
            {"cluster": {"worker": ["h:1", "h:2", "h:3", "h:4"]}, "task": {"type": "worker", "index": 1}}
        )
    },
    "JAX_*": {"JAX_COORDINATOR_ADDRESS": "h:1", "JAX_NUM_PROCESSES": "4", "JAX_PROCESS_ID": "1"},
    "torchrun": {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "h", "MASTER_PORT": "1"},
    "Slurm": {
        "SLURM_PROCID": "1",
        "SLURM_STEP_NUM_TASKS": "4",
        "SLURM_STEP_NODELIST": "h",
        "SLURM_STEP_TASKS_PER_NODE": "4",
    },
    "Open MPI": {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"},
    "PMI": {"PMI_RANK": "1", "PMI_SIZE": "4"},
    "TPU": {"TPU_WORKER_HOSTNAMES": "h,i,j,k", "TPU_WORKER_ID": "1"},
    "SageMaker": {"SM_HOSTS": '["h", "i", "j", "k"]', "SM_CURRENT_HOST": "i"},
}
ORDER = [*SOURCES]


@pytest.mark.parametrize("first", range(len(ORDER)), ids=ORDER)
def test_the_first_that_applies_wins(first: int):
    environ = {name: value for source in ORDER[first:] for name, value in SOURCES[source].items()}
    found = detect_cluster(environ)
    assert found.winner == ORDER[first]
    assert (found.config.process_id, found.config.num_processes, found.conflicts) == (1, 4, ())
    for candidate in found.candidates[:first]:
        assert not candidate.applies, candidate
    for candidate in found.candidates[first + 1 : -1]:
        assert f"comes after {ORDER[first]}" in candidate.because


@pytest.mark.parametrize("source", ORDER)
def test_each_alone(source: str):
    found = detect_cluster(SOURCES[source])
    assert (found.winner, found.config.source) == (source, source)
    assert [candidate.name for candidate in found.candidates if candidate.applies] == [source]
    assert f"{source:<12} won" in found.report()


def test_nothing_is_a_single_process():
    found = detect_cluster({})
    assert (found.winner, found.config.num_processes, found.config.is_chief) == (None, 1, True)
    assert found.report().startswith("This process is a single process, as told by nobody.")
    assert all(candidate.because for candidate in found.candidates)
    assert found.candidates[-1].name == "Kubernetes"


def test_the_process_environment_is_the_default(monkeypatch):
    for name, value in SOURCES["REPLICAX_*"].items():
        monkeypatch.setenv(name, value)
    assert detect_cluster().winner == "REPLICAX_*"


def test_contradicting_counts_are_a_conflict():
    found = detect_cluster({**SOURCES["torchrun"], **SOURCES["Open MPI"], "OMPI_COMM_WORLD_SIZE": "2"})
    assert found.winner == "torchrun"
    assert len(found.conflicts) == 1
    for word in ("torchrun tells of 4", "Open MPI of 2", "unset"):
        assert word in found.conflicts[0]
    assert f"Conflict: {found.conflicts[0]}" in found.report()


def test_parameter_servers_count_as_processes_of_the_launcher():
    cluster = {"worker": ["h:1", "h:2"], "ps": ["h:3", "h:4"]}
    tf_config = {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "ps", "index": 1}})}
    found = detect_cluster({**tf_config, **SOURCES["Slurm"]})
    assert found.conflicts == ()
    assert "ps:1, a parameter server" in found.report()


def test_a_malformed_winner_is_an_error_and_a_malformed_other_a_conflict():
    broken = {**SOURCES["JAX_*"], "JAX_PROCESS_ID": "x"}
    with pytest.raises(ClusterError, match="JAX_PROCESS_ID"):
        detect_cluster({**broken, **SOURCES["torchrun"]})
    found = detect_cluster({**SOURCES["REPLICAX_*"], **broken})
    assert found.winner == "REPLICAX_*"
    assert "JAX_PROCESS_ID must be an int" in found.conflicts[0]


@pytest.mark.parametrize(
    ("environ", "source", "because"),
    [
        ({"TF_CONFIG": "{}"}, "TF_CONFIG", "names no cluster"),
        ({"JAX_COORDINATOR_ADDRESS": "h:1"}, "JAX_*", "neither"),
        ({"RANK": "1"}, "torchrun", "WORLD_SIZE is not set"),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, "Slurm", "no step of srun"),
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}, "Slurm", "a single task"),
        ({"PMIX_RANK": "0"}, "PMI", "nothing tells the number"),
        ({"TPU_WORKER_HOSTNAMES": "localhost"}, "TPU", "a single host"),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "Kubernetes", "never"),
    ],
)
def test_why_not(environ, source, because):
    found = detect_cluster(environ)
    assert found.winner is None
    assert because in {candidate.name: candidate.because for candidate in found.candidates}[source]


@pytest.mark.parametrize("environ", [{"REPLICAX_PROCESS_ID": "1"}, {"JAX_NUM_PROCESSES": "2"}, {"TF_CONFIG": "{"}])
def test_what_was_begun_on_purpose_is_not_passed_over(environ):
    with pytest.raises(ClusterError):
        detect_cluster(environ)


def test_a_detection_is_a_value():
    found = detect_cluster(SOURCES["Slurm"])
    assert found == detect_cluster(SOURCES["Slurm"])
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.winner = "me"  # type: ignore[misc]


def test_finding_out_touches_no_device_and_starts_nothing():
    code = """
from jax._src import distributed, xla_bridge
from replicax.cluster import detect_cluster
detect_cluster({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "h", "MASTER_PORT": "1"})
assert not xla_bridge.backends_are_initialized()
assert distributed.global_state.client is None
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
