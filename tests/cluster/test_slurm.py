"""Rule 116, and what a Slurm step may say wrongly."""

from __future__ import annotations

import pytest

from replicax.cluster import ClusterSpec, SlurmClusterResolver, expand_hostlist, expand_tasks_per_node
from replicax.errors import ClusterError

STEP = {
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_STEP_NODELIST": "n[9-10],x",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
    "SLURM_GPUS_ON_NODE": "4",
}
ADDRESSES = ["n9:8888", "n9:8889", "n10:8888", "n10:8889", "x:8888"]


def slurm(changes: dict[str, str] | None = None, **arguments) -> SlurmClusterResolver:
    return SlurmClusterResolver(**arguments, environ={**STEP, **(changes or {})})


@pytest.mark.parametrize(
    ("hostlist", "hosts"),
    [
        ("n1", ["n1"]),
        ("n1,n2", ["n1", "n2"]),
        ("n[1-3,7]x", ["n1x", "n2x", "n3x", "n7x"]),
        ("n[08-10]", ["n08", "n09", "n10"]),
        ("n[001,007-008],login", ["n001", "n007", "n008", "login"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("a-[1-2].cluster, b_3", ["a-1.cluster", "a-2.cluster", "b_3"]),
        ("n[9-11]", ["n9", "n10", "n11"]),
        ("z,a", ["z", "a"]),
    ],
)
def test_host_lists_expand(hostlist, hosts):
    assert expand_hostlist(hostlist) == hosts


@pytest.mark.parametrize(
    "hostlist",
    [
        *(
            "",
            ",",
            "n1,",
            ",n1",
            "n1,,n2",
            "n[",
            "n]",
            "n[]",
            "n[1",
            "n1]",
            "n[3-1]",
            "n[a-b]",
            "n[1-]",
            "n[-1]",
            "n/1",
        ),
        *("n[1--2]", "n[1,]", "n[[1]]", "n 1", "n[1-2", "é", "n[1-999999999]", "n[1-99999]m[1-99999]"),
    ],
)
def test_malformed_host_lists(hostlist):
    with pytest.raises(ClusterError, match="hostlist") as error:
        expand_hostlist(hostlist)
    assert error.value.value == hostlist


def test_tasks_per_node_expand():
    assert expand_tasks_per_node("2(x3),1") == [2, 2, 2, 1]
    assert expand_tasks_per_node("4") == [4]
    assert expand_tasks_per_node("1,2(x2),3") == [1, 2, 2, 3]


@pytest.mark.parametrize("text", ["", "0", "-1", "a", "2(x0)", "2(3)", "2x3", "2(x3", "2,,1", "2(x3),", "1.5"])
def test_malformed_tasks_per_node(text):
    with pytest.raises(ClusterError, match="tasks_per_node"):
        expand_tasks_per_node(text)


def test_all_tasks_are_workers_in_the_order_of_their_ranks():
    found = slurm()
    assert found.cluster_spec() == ClusterSpec({"worker": ADDRESSES})
    assert found.get_task_info() == ("worker", 3) == (found.task_type, found.task_id)
    assert found.config().local_process_id == 1
    assert found.master() == "grpc://n10:8889"
    assert found.master("worker", 0, "http") == "http://n9:8888"


@pytest.mark.parametrize(
    ("rank", "task"),
    [("0", ("chief", 0)), ("1", ("ps", 0)), ("2", ("ps", 1)), ("3", ("worker", 0)), ("4", ("worker", 1))],
)
def test_jobs_take_tasks_in_the_order_of_their_names(rank, task):
    found = slurm({"SLURM_PROCID": rank}, jobs={"worker": 2, "ps": 2, "chief": 1}, port_base=9000)
    assert found.get_task_info() == task
    spec = {"chief": ["n9:9000"], "ps": ["n9:9001", "n10:9000"], "worker": ["n10:9001", "x:9000"]}
    assert found.cluster_spec() == ClusterSpec(spec)


@pytest.mark.parametrize(
    ("rank", "arguments", "gpus"),
    [
        ("0", {}, (0, 1)),
        ("3", {}, (2, 3)),
        ("4", {}, (0, 1)),
        ("3", {"gpus_per_task": 1}, (1,)),
        ("3", {"gpus_per_node": 8}, (4, 5, 6, 7)),
        ("3", {"gpus_per_node": 0}, ()),
        ("3", {"gpus_per_node": 1}, ()),
    ],
)
def test_each_task_has_its_gpus_and_nothing_is_set(rank, arguments, gpus):
    found = slurm({"SLURM_PROCID": rank}, **arguments)
    assert found.gpu_ids() == gpus
    assert found.gpu_environment() == ({"CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus))} if gpus else {})
    assert found.num_accelerators() == ({"GPU": len(gpus)} if gpus else {})


def test_gpus_are_left_alone_on_request():
    assert slurm(auto_set_gpu=False).gpu_environment() == {}


def test_tasks_per_node_may_be_given():
    two_nodes = {"SLURM_STEP_NODELIST": "a,b", "SLURM_STEP_NUM_TASKS": "4"}
    assert slurm(two_nodes, tasks_per_node=2).cluster_spec().num_tasks("worker") == 4
    assert slurm(two_nodes, tasks_per_node="3,1").master("worker", 3, "g") == "g://b:8888"


@pytest.mark.parametrize(
    ("changes", "arguments", "field"),
    [
        ({"SLURM_PROCID": ""}, {}, "SLURM_PROCID"),
        ({"SLURM_PROCID": "5"}, {}, "SLURM_PROCID"),
        ({"SLURM_PROCID": "-1"}, {}, "SLURM_PROCID"),
        ({"SLURM_PROCID": "x"}, {}, "SLURM_PROCID"),
        ({"SLURM_STEP_NUM_TASKS": "0"}, {}, "SLURM_STEP_NUM_TASKS"),
        ({"SLURM_STEP_NUM_TASKS": ""}, {}, "SLURM_STEP_NUM_TASKS"),
        ({"SLURM_STEP_NUM_TASKS": "6"}, {}, "SLURM_STEP_NUM_TASKS"),
        ({"SLURM_STEP_NODELIST": "n["}, {}, "SLURM_STEP_NODELIST"),
        ({"SLURM_STEP_NODELIST": ""}, {}, "SLURM_STEP_NODELIST"),
        ({"SLURM_STEP_NODELIST": "n9"}, {}, "SLURM_STEP_TASKS_PER_NODE"),
        ({"SLURM_STEP_TASKS_PER_NODE": "2,x"}, {}, "SLURM_STEP_TASKS_PER_NODE"),
        ({"SLURM_LOCALID": "x"}, {}, "SLURM_LOCALID"),
        ({"SLURM_GPUS_ON_NODE": "x"}, {}, "SLURM_GPUS_ON_NODE"),
        ({}, {"jobs": {"worker": 4}}, "jobs"),
        ({}, {"port_base": 65535}, "port_base"),
        ({}, {"gpus_per_task": 3}, "gpus_per_task"),
        ({}, {"tasks_per_node": "2,2"}, "tasks_per_node"),
        ({}, {"tasks_per_node": 2}, "SLURM_STEP_NUM_TASKS"),
        ({"SLURM_STEP_NODELIST": "localhost,n1,n2"}, {}, "Slurm cluster.worker[0]"),
        ({}, {"jobs": {"slave": 5}}, "Slurm cluster.slave"),
    ],
)
def test_what_does_not_fit_is_named(changes, arguments, field):
    found = slurm(changes, **arguments)
    with pytest.raises(ClusterError) as error:
        (found.config(), found.gpu_ids())
    assert error.value.field == field


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"port_base": 0}, "port_base"),
        ({"jobs": {"worker": 0}}, "jobs['worker']"),
        ({"jobs": {"worker": True}}, "jobs['worker']"),
        ({"gpus_per_node": -1}, "gpus_per_node"),
        ({"gpus_per_task": 0}, "gpus_per_task"),
        ({"tasks_per_node": 0}, "tasks_per_node"),
    ],
)
def test_arguments_out_of_range(arguments, field):
    with pytest.raises(ClusterError) as error:
        slurm(**arguments)
    assert error.value.field == field
