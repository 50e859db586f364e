"""Which source wins, why the others do not, and what is said when two of them disagree."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import pytest

from replicax.cluster import detect_cluster, found_cluster
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
    assert found.report().startswith("This process is a single process: nothing in its environment names a cluster.")
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
    for word in ("torchrun describes 4", "Open MPI 2", "unset"):
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
        ({"RANK": "0"}, "torchrun", "WORLD_SIZE is not set"),
        ({"WORLD_SIZE": "1"}, "torchrun", "RANK is not set"),
        ({"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}, "torchrun", "RANK and WORLD_SIZE are not set"),
        ({"WORLD_SIZE": "a"}, "torchrun", "RANK is not set"),
        ({"SLURM_STEP_NUM_TASKS": "1"}, "Slurm", "not a step of srun"),
        ({"OMPI_COMM_WORLD_SIZE": "1"}, "Open MPI", "OMPI_COMM_WORLD_RANK is not set"),
        ({"TPU_WORKER_ID": "0"}, "TPU", "is set"),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, "Slurm", "not a step of srun"),
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}, "Slurm", "a single task"),
        ({"PMIX_RANK": "0"}, "PMI", "number of processes is not known"),
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


@pytest.mark.parametrize(
    ("environ", "missing", "telling"),
    [
        ({"WORLD_SIZE": "4"}, "RANK", "WORLD_SIZE is '4'"),
        ({"WORLD_SIZE": "4", "RANK": ""}, "RANK", "WORLD_SIZE is '4'"),
        ({"RANK": "1"}, "WORLD_SIZE", "RANK is '1'"),
        ({"WORLD_SIZE": "4", "LOCAL_RANK": "0", "MASTER_ADDR": "h"}, "RANK", "WORLD_SIZE is '4'"),
        ({"LOCAL_RANK": "1"}, "RANK", "LOCAL_RANK is '1'"),
        ({"LOCAL_WORLD_SIZE": "2", "RANK": "0"}, "WORLD_SIZE", "LOCAL_WORLD_SIZE is '2'"),
        ({"SLURM_STEP_NUM_TASKS": "6"}, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS is '6'"),
        ({"SLURM_PROCID": "3", "SLURM_NTASKS": "6"}, "SLURM_STEP_NUM_TASKS", "SLURM_PROCID is '3'"),
        ({"OMPI_COMM_WORLD_SIZE": "4"}, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE is '4'"),
        ({"OMPI_COMM_WORLD_RANK": "1"}, "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK is '1'"),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE is '2'"),
        ({"PMI_SIZE": "4"}, "PMI_RANK", "PMI_SIZE is '4'"),
        ({"PMI_RANK": "2"}, "PMI_SIZE", "PMI_RANK is '2'"),
        ({"PMIX_RANK": "2"}, "PMI_SIZE", "PMIX_RANK is '2'"),
        ({"MPI_LOCALRANKID": "1"}, "PMI_RANK", "MPI_LOCALRANKID is '1'"),
        ({"TPU_WORKER_ID": "1"}, "TPU_WORKER_HOSTNAMES", "TPU_WORKER_ID is '1'"),
        ({"MEGASCALE_NUM_SLICES": "2"}, "TPU_WORKER_HOSTNAMES", "MEGASCALE_NUM_SLICES is '2'"),
        ({"MEGASCALE_SLICE_ID": "1"}, "TPU_WORKER_HOSTNAMES", "MEGASCALE_SLICE_ID is '1'"),
        ({"SM_CURRENT_HOST": "algo-2"}, "SM_HOSTS", "SM_CURRENT_HOST is set"),
        ({"JAX_NUM_PROCESSES": "2", "JAX_COORDINATOR_ADDRESS": "h:1"}, "JAX_PROCESS_ID", "number"),
        ({"JAX_PROCESS_ID": "0", "JAX_COORDINATOR_ADDRESS": "h:1"}, "JAX_NUM_PROCESSES", "number"),
        ({"REPLICAX_NUM_PROCESSES": "2", "REPLICAX_PROCESS_ID": "1"}, "REPLICAX_COORDINATOR", "process 0"),
        ({"REPLICAX_COORDINATOR": "h:1"}, "REPLICAX_NUM_PROCESSES", "number"),
        ({"REPLICAX_LOCAL_PROCESS_ID": "1"}, "REPLICAX_PROCESS_ID", "REPLICAX_LOCAL_PROCESS_ID is '1'"),
    ],
)
def test_what_was_set_by_halves_is_an_error_that_names_the_other_half(environ, missing, telling):
    with pytest.raises(ClusterError, match=f"^{missing} ") as error:
        detect_cluster(environ)
    assert error.value.field == missing
    assert telling in str(error.value) or missing == "JAX_PROCESS_ID"


def test_halves_beside_a_whole_source_are_left_alone():
    found = detect_cluster({**SOURCES["REPLICAX_*"], "WORLD_SIZE": "8", "SLURM_STEP_NUM_TASKS": "6"})
    assert (found.winner, found.conflicts) == ("REPLICAX_*", ())


def test_conflicts_are_warned_of_at_the_start(monkeypatch, caplog):
    for name, value in {**SOURCES["torchrun"], **SOURCES["Open MPI"], "OMPI_COMM_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    with caplog.at_level("WARNING"):
        assert found_cluster().num_processes == 4
    assert "torchrun describes 4 processes, Open MPI 2" in caplog.text


def test_a_detection_is_a_value():
    found = detect_cluster(SOURCES["Slurm"])
    assert found == detect_cluster(SOURCES["Slurm"])
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.winner = "me"  # type: ignore[misc]


def test_finding_out_touches_no_device_and_starts_nothing():
    code = """
from jax._src import distributed, xla_bridge
from replicax.cluster import detect_cluster, found_cluster
detect_cluster({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "h", "MASTER_PORT": "1"})
assert not xla_bridge.backends_are_initialized()
assert distributed.global_state.client is None
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
