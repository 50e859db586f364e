"""Launchers that number the processes: what each variable may be, and what is said when it is not."""

from __future__ import annotations

import pytest

from replicax.cluster import (
    ClusterSpec,
    JaxClusterResolver,
    OpenMPIClusterResolver,
    PMIClusterResolver,
    RankClusterResolver,
    ReplicaxClusterResolver,
    TorchrunClusterResolver,
)
from replicax.errors import ClusterError

URI = "OMPI_MCA_orte_hnp_uri"
COMPLETE: dict[type[RankClusterResolver], dict[str, str]] = {
    ReplicaxClusterResolver: {"REPLICAX_COORDINATOR": "h:1", "REPLICAX_NUM_PROCESSES": "4", "REPLICAX_PROCESS_ID": "3"},
    JaxClusterResolver: {"JAX_COORDINATOR_ADDRESS": "h:1", "JAX_NUM_PROCESSES": "4", "JAX_PROCESS_ID": "3"},
    TorchrunClusterResolver: {"MASTER_ADDR": "h", "MASTER_PORT": "1", "WORLD_SIZE": "4", "RANK": "3"},
    OpenMPIClusterResolver: {
        "OMPI_COMM_WORLD_SIZE": "4",
        "OMPI_COMM_WORLD_RANK": "3",
        "JAX_COORDINATOR_ADDRESS": "h:1",
    },
    PMIClusterResolver: {"PMI_SIZE": "4", "PMI_RANK": "3", "JAX_COORDINATOR_ADDRESS": "h:1"},
}
KINDS = pytest.mark.parametrize("kind", COMPLETE, ids=lambda kind: kind.name)


@KINDS
def test_number_count_and_coordinator(kind):
    found = kind(environ=COMPLETE[kind])
    config = found.config()
    assert (config.process_id, config.num_processes, config.coordinator_address) == (3, 4, "h:1")
    assert (found.task_type, found.task_id) == ("worker", 3)
    assert found.cluster_spec() == ClusterSpec({"worker": ["h:1"]})
    assert not config.knows_all_addresses
    assert (found.master(), found.master("worker", 0)) == ("", "h:1")
    assert kind.applies(COMPLETE[kind]).applies


@KINDS
def test_an_argument_wins_over_the_environment(kind):
    found = kind("other:2", "grpc", COMPLETE[kind])
    assert found.config().coordinator_address == "other:2"
    assert found.master("worker", 0) == "grpc://other:2"


@KINDS
@pytest.mark.parametrize("bad", ["0", "-1", "x", "1.0", " ", "4e0", "٣", "9" * 5000])
def test_a_malformed_count(kind, bad):
    with pytest.raises(ClusterError) as error:
        kind(environ={**COMPLETE[kind], kind.count: bad}).config()
    assert error.value.field == kind.count
    assert str(error.value).startswith(kind.count)


@KINDS
@pytest.mark.parametrize("bad", ["4", "-1", "x", "1.0", "", "True"])
def test_a_malformed_number(kind, bad):
    with pytest.raises(ClusterError) as error:
        kind(environ={**COMPLETE[kind], kind.rank: bad}).config()
    assert error.value.field == kind.rank


@KINDS
def test_the_number_must_be_less_than_the_count(kind):
    with pytest.raises(ClusterError, match=f"from 0 to 3, got '4'. {kind.count} is 4"):
        kind(environ={**COMPLETE[kind], kind.rank: "4"}).config()


@KINDS
def test_each_variable_is_missed(kind):
    optional = {"JAX_COORDINATOR_ADDRESS"} if kind in (OpenMPIClusterResolver, PMIClusterResolver) else set()
    for missing in COMPLETE[kind].keys() - optional:
        with pytest.raises(ClusterError) as error:
            kind(environ={name: value for name, value in COMPLETE[kind].items() if name != missing}).config()
        assert error.value.field == missing
        assert "is not set" in str(error.value)


@pytest.mark.parametrize(
    ("kind", "variable", "bad"),
    [
        (ReplicaxClusterResolver, "REPLICAX_COORDINATOR", "h"),
        (ReplicaxClusterResolver, "REPLICAX_LOCAL_PROCESS_ID", "-1"),
        (JaxClusterResolver, "JAX_COORDINATOR_ADDRESS", "grpc://h:1"),
        (JaxClusterResolver, "JAX_COORDINATOR_ADDRESS", "h"),
        (TorchrunClusterResolver, "MASTER_PORT", "0"),
        (TorchrunClusterResolver, "MASTER_PORT", "65536"),
        (TorchrunClusterResolver, "MASTER_ADDR", "a b"),
        (TorchrunClusterResolver, "LOCAL_RANK", "x"),
        (OpenMPIClusterResolver, URI, "tcp://1.2.3.4:5"),
        (OpenMPIClusterResolver, URI, "x"),
        (PMIClusterResolver, "JAX_COORDINATOR_ADDRESS", "h:0"),
    ],
)
def test_other_malformed_variables(kind, variable, bad):
    environ = {**COMPLETE[kind], variable: bad}
    if variable == URI:
        del environ["JAX_COORDINATOR_ADDRESS"]
    with pytest.raises(ClusterError, match=variable):
        kind(environ=environ).config()


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        (ReplicaxClusterResolver, {"REPLICAX_COORDINATOR": "127.0.0.1:1", "REPLICAX_LOCAL_NUM_PROCESSES": "2"}),
        (TorchrunClusterResolver, {"MASTER_ADDR": "localhost", "LOCAL_WORLD_SIZE": "2"}),
        (OpenMPIClusterResolver, {"JAX_COORDINATOR_ADDRESS": "[::1]:1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}),
        (PMIClusterResolver, {"JAX_COORDINATOR_ADDRESS": "localhost:1", "MPI_LOCALNRANKS": "2"}),
    ],
)
def test_a_loopback_coordinator_is_refused_if_there_are_several_machines(kind, changes):
    environ = {**COMPLETE[kind], **changes}
    with pytest.raises(ClusterError, match="loopback"):
        kind(environ=environ).config()
    environ[kind.local_count] = "4"
    assert kind(environ=environ).config().num_processes == 4


@pytest.mark.parametrize("kind", [ReplicaxClusterResolver, JaxClusterResolver, TorchrunClusterResolver])
def test_a_single_process_needs_no_coordinator(kind):
    config = kind(environ={kind.count: "1", kind.rank: "0"}).config()
    assert (config.num_processes, config.coordinator_address, config.is_chief) == (1, None, True)


def test_torchrun_keeps_its_port_to_itself():
    agent = {**COMPLETE[TorchrunClusterResolver], "TORCHELASTIC_USE_AGENT_STORE": "True"}
    assert TorchrunClusterResolver(environ=agent).coordinator_address() == "h:2"
    assert TorchrunClusterResolver(environ={**agent, "MASTER_PORT": "65535"}).coordinator_address() == "h:65534"


def test_an_ipv6_master_gets_its_brackets():
    found = TorchrunClusterResolver(environ={**COMPLETE[TorchrunClusterResolver], "MASTER_ADDR": "fd00::1"})
    assert found.coordinator_address() == "[fd00::1]:1"


def test_jax_may_tell_its_port_apart():
    environ = {
        "JAX_COORDINATOR_ADDRESS": "h",
        "JAX_COORDINATOR_PORT": "5",
        "JAX_NUM_PROCESSES": "2",
        "JAX_PROCESS_ID": "0",
    }
    assert JaxClusterResolver(environ=environ).coordinator_address() == "h:5"


def test_pmix_takes_the_size_from_pmi():
    environ = {"PMIX_RANK": "1", "PMI_SIZE": "2"}
    assert PMIClusterResolver.applies(environ).applies
    assert PMIClusterResolver("h:1", environ=environ).config().process_id == 1
    assert "number of processes is not known" in PMIClusterResolver.applies({"PMIX_RANK": "1"}).because


def test_the_task_may_be_assigned():
    found = ReplicaxClusterResolver(environ=COMPLETE[ReplicaxClusterResolver])
    found.task_id = 1
    assert found.config().process_id == 1
    found.task_type = "chief"
    with pytest.raises(ClusterError, match=r"task\.type"):
        found.config()
