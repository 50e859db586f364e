"""Kubernetes and Compute Engine with fake clients; TPUs and SageMaker by their variables."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from replicax.cluster import (
    ClusterSpec,
    GCEClusterResolver,
    KubernetesClusterResolver,
    KubernetesExecutableLocation,
    SageMakerClusterResolver,
    TPUClusterResolver,
)
from replicax.errors import ArgumentError, ClusterError


def pod(name: str, ip: str | None, phase: str = "Running", host_ip: str | None = None) -> Any:
    status = SimpleNamespace(phase=phase, pod_ip=ip, host_ip=host_ip)
    return SimpleNamespace(metadata=SimpleNamespace(name=name), status=status)


class FakeKubernetes:
    def __init__(self, **pods: list[Any]):
        self.pods = pods

    def list_pod_for_all_namespaces(self, label_selector: str) -> Any:
        return SimpleNamespace(items=self.pods.get(label_selector.partition("=")[2], []))


def kubernetes(mapping: Any = None, me: str = "w-1", **pods: list[Any]) -> KubernetesClusterResolver:
    return KubernetesClusterResolver(mapping, override_client=FakeKubernetes(**pods), environ={"HOSTNAME": me})


def test_pods_are_numbered_by_name():
    found = kubernetes(tensorflow=[pod("w-1", "10.0.0.2"), pod("w-0", "10.0.0.1"), pod("w-x", "10.0.0.3", "Failed")])
    assert found.cluster_spec() == ClusterSpec({"worker": ["10.0.0.1:8470", "10.0.0.2:8470"]})
    assert (found.task_type, found.task_id, found.rpc_layer) == ("worker", 1, "grpc")
    assert found.master("worker", 0) == "grpc://10.0.0.1:8470"
    assert found.config().process_id == 1


def test_jobs_have_labels_of_their_own():
    mapping = {"worker": ["j=a", "j=b"], "ps": ["j=c"]}
    pods = {"a": [pod("a", "fd00::1")], "b": [pod("b", None, host_ip="10.0.0.2")], "c": [pod("c", "10.0.0.3")]}
    found = kubernetes(mapping, "elsewhere", **pods)
    assert found.cluster_spec() == ClusterSpec({"worker": ["[fd00::1]:8470", "10.0.0.2:8470"], "ps": ["10.0.0.3:8470"]})
    assert (found.task_type, found.task_id, found.master()) == (None, None, "")


@pytest.mark.parametrize(
    ("pods", "words"),
    [
        ([], "has no pods"),
        ([pod("w-0", "10.0.0.1", "Failed")], "has no pods"),
        ([pod("w-0", "10.0.0.1"), pod("w-1", None, "Pending")], "pod w-1 must be running, got 'Pending'"),
        ([pod("w-0", None)], "without address"),
        ([pod("w-0", "10.0.0.1"), pod("w-1", "10.0.0.1")], "has the address of"),
    ],
)
def test_pods_that_are_no_cluster(pods, words):
    with pytest.raises(ClusterError, match=words):
        kubernetes(tensorflow=pods).cluster_spec()


def test_kubernetes_without_its_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    with pytest.raises(ImportError, match="pip install kubernetes"):
        KubernetesClusterResolver()
    with pytest.raises(ArgumentError, match="WITHIN_CLUSTER"):
        KubernetesClusterResolver(executable_location="here")  # type: ignore[arg-type]


@pytest.mark.parametrize("location", KubernetesExecutableLocation)
def test_kubernetes_logs_in_where_it_is(monkeypatch, location):
    calls = []
    config = SimpleNamespace(
        load_incluster_config=lambda: calls.append("WITHIN_CLUSTER"),
        load_kube_config=lambda: calls.append("OFF_CLUSTER"),
    )
    client = SimpleNamespace(CoreV1Api=lambda: FakeKubernetes(tensorflow=[pod("w", "10.0.0.1")]))
    monkeypatch.setitem(sys.modules, "kubernetes", SimpleNamespace(config=config, client=client))
    assert KubernetesClusterResolver(executable_location=location, environ={}).cluster_spec()
    assert calls == [location.name]


class FakeCompute:
    """Two pages of instances."""

    def __init__(self, *pages: dict[str, str]):
        self.pages = pages

    def instanceGroups(self) -> Any:
        return self

    def instances(self) -> Any:
        ips = {name: ip for page in self.pages for name, ip in page.items()}
        answer = lambda name: {"networkInterfaces": [{"networkIP": ips[name]}]}  # noqa: E731
        return SimpleNamespace(get=lambda project, zone, instance: SimpleNamespace(execute=lambda: answer(instance)))

    def _request(self, number: int) -> Any:
        items = [{"instance": f"https://compute/zones/z/instances/{name}"} for name in self.pages[number]]
        return SimpleNamespace(execute=lambda: {"items": items} if items else {}, number=number)

    def listInstances(self, project: str, zone: str, instanceGroup: str, body: Any, orderBy: str) -> Any:
        assert body == {"instanceState": "RUNNING"}
        return self._request(0)

    def listInstances_next(self, previous_request: Any, previous_response: Any) -> Any:
        following = previous_request.number + 1
        return self._request(following) if following < len(self.pages) else None


def gce(*pages: dict[str, str], **arguments: Any) -> GCEClusterResolver:
    return GCEClusterResolver("project", "zone", "group", 8470, service=FakeCompute(*pages), **arguments)


def test_instances_of_all_pages_are_one_job():
    found = gce({"b": "10.0.0.2"}, {"a": "10.0.0.1"}, task_id=1)
    assert found.cluster_spec() == ClusterSpec({"worker": ["10.0.0.1:8470", "10.0.0.2:8470"]})
    assert (found.master(), found.config().process_id) == ("grpc://10.0.0.2:8470", 1)
    found.task_id = 0
    assert found.config().is_chief
    with pytest.raises(RuntimeError, match="cannot be changed"):
        found.task_type = "ps"


def test_a_group_without_instances():
    with pytest.raises(ClusterError, match="'group'"):
        gce({}).cluster_spec()
    with pytest.raises(ClusterError, match="less than 1"):
        gce({"a": "10.0.0.1"}, task_id=1).config()


def test_gce_without_its_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "googleapiclient", None)
    with pytest.raises(ImportError, match="google-api-python-client"):
        GCEClusterResolver("project", "zone", "group", 8470)


SLICE = {"TPU_WORKER_HOSTNAMES": "a,b,c", "TPU_WORKER_ID": "1"}
SLICES = {"MEGASCALE_NUM_SLICES": "2", "MEGASCALE_SLICE_ID": "1", "MEGASCALE_COORDINATOR_ADDRESS": "a:8080"}


def test_a_tpu_slice():
    found = TPUClusterResolver(environ=SLICE)
    assert found.cluster_spec() == ClusterSpec({"worker": ["a:8482", "b:8482", "c:8482"]})
    assert (found.master(), found.config().process_id) == ("grpc://b:8482", 1)


def test_addresses_of_processes_come_before_names_of_hosts():
    environ = {**SLICE, "TPU_PROCESS_ADDRESSES": "x:8476,y:8477"}
    assert TPUClusterResolver(environ=environ).cluster_spec() == ClusterSpec({"worker": ["x:8476", "y:8477"]})


def test_tpu_hosts_may_be_named():
    named = TPUClusterResolver("grpc://10.0.0.1:1,fd00::1,[fd00::2],[fd00::3]:4", environ={"TPU_WORKER_ID": "3"})
    hosts = ["10.0.0.1:1", "[fd00::1]:8482", "[fd00::2]:8482", "[fd00::3]:4"]
    assert named.cluster_spec() == ClusterSpec({"worker": hosts})
    for alone in ("", "local"):
        assert TPUClusterResolver(alone, environ=SLICE).config().num_processes == 1


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"TPU_WORKER_ID": ""}, "TPU_WORKER_ID"),
        ({"TPU_WORKER_ID": "3"}, "TPU_WORKER_ID"),
        ({"TPU_WORKER_HOSTNAMES": "a,,b"}, "TPU_WORKER_HOSTNAMES"),
        ({"TPU_WORKER_HOSTNAMES": "a,a"}, "TPU cluster.worker[1]"),
        ({"TPU_WORKER_HOSTNAMES": "a,localhost"}, "TPU cluster.worker[1]"),
        ({**SLICES, "MEGASCALE_NUM_SLICES": "0"}, "MEGASCALE_NUM_SLICES"),
        ({**SLICES, "MEGASCALE_SLICE_ID": "2"}, "MEGASCALE_SLICE_ID"),
        ({**SLICES, "MEGASCALE_SLICE_ID": ""}, "MEGASCALE_SLICE_ID"),
        ({**SLICES, "MEGASCALE_COORDINATOR_ADDRESS": ""}, "MEGASCALE_COORDINATOR_ADDRESS"),
    ],
)
def test_malformed_tpu_variables(changes, field):
    with pytest.raises(ClusterError) as error:
        TPUClusterResolver(environ={**SLICE, **changes}).config()
    assert error.value.field == field


def sagemaker(hosts: Any, me: str = "algo-1", **arguments: Any) -> SageMakerClusterResolver:
    written = hosts if isinstance(hosts, str) else json.dumps(hosts)
    return SageMakerClusterResolver(environ={"SM_HOSTS": written, "SM_CURRENT_HOST": me}, **arguments)


def test_hosts_of_sagemaker_are_workers():
    found = sagemaker(["algo-2", "algo-1"], port=5)
    assert found.cluster_spec() == ClusterSpec({"worker": ["algo-1:5", "algo-2:5"]})
    assert found.config().is_chief
    assert sagemaker(["a", "b"], task_type="worker", task_id=1).config().process_id == 1


@pytest.mark.parametrize("hosts", ["", "algo-1", "[", "[]", "[1]", "{}", "[" * 100_000, '["algo-1", "algo-1"]'])
def test_malformed_sagemaker_hosts(hosts):
    with pytest.raises(ClusterError):
        sagemaker(hosts).config()


def test_a_sagemaker_host_that_is_not_there():
    with pytest.raises(ClusterError, match="'x'"):
        sagemaker(["algo-1"], "x").config()
