"""The manifest holds what Kubernetes asks for; there is no cluster here to try it on."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import yaml

from replicax.errors import LaunchError
from replicax.job.templates import ClusterJob, kubernetes
from tests.job.templates.arguments import ARGUMENTS, words
from tests.job.templates.schemas import faults

# The fields of the Kubernetes API that the manifest may use, with their types; from the reference of v1 and batch/v1.
ENV = {"name": str, "value": str, "valueFrom": {"secretKeyRef": {"name": str, "key": str}}}
CONTAINER = {
    "name": str,
    "image": str,
    "command": [str],
    "args": [str],
    "env": [ENV],
    "ports": [{"containerPort": int}],
    "resources": {"requests": dict, "limits": dict},
    "volumeMounts": [{"name": str, "mountPath": str}],
}
POD = {
    "restartPolicy": {"Never"},  # With a podFailurePolicy nothing else is allowed.
    "subdomain": str,
    "terminationGracePeriodSeconds": int,
    "containers": [CONTAINER],
    "volumes": [{"name": str, "emptyDir": {"medium": {"Memory"}, "sizeLimit": str}}],
}
RULE = {
    "action": {"FailJob", "Ignore", "Count", "FailIndex"},
    "onExitCodes": {"containerName": str, "operator": {"In", "NotIn"}, "values": [int]},
    "onPodConditions": [{"type": str, "status": {"True", "False", "Unknown"}}],
}
JOB = {
    "completionMode": {"Indexed"},
    "completions": int,
    "parallelism": int,
    "backoffLimitPerIndex": int,
    "maxFailedIndexes": int,
    "podReplacementPolicy": {"Failed"},  # Likewise.
    "podFailurePolicy": {"rules": [RULE]},
    "template": {"spec": POD},
}
SERVICE = {
    "clusterIP": {"None"},
    "publishNotReadyAddresses": bool,
    "selector": dict,
    "ports": [{"name": str, "port": int}],
}
HEAD = {"metadata": {"name": str}}
DOCUMENTS = [
    {"apiVersion": {"v1"}, "kind": {"Service"}, "spec": SERVICE, **HEAD},
    {"apiVersion": {"v1"}, "kind": {"Secret"}, "stringData": {"token": str}, **HEAD},
    {"apiVersion": {"batch/v1"}, "kind": {"Job"}, "spec": JOB, **HEAD},
]


@pytest.mark.parametrize(
    "cluster",
    [ClusterJob("train.py", image="i"), ClusterJob("train.py", ARGUMENTS, "my-job", 4, gpus=8, image="i")],
)
def test_the_manifest_has_the_fields_of_the_api(cluster: ClusterJob):
    documents = list(yaml.safe_load_all(kubernetes(cluster, "secret")))
    for document, schema in zip(documents, DOCUMENTS, strict=True):
        assert faults(document, schema) == []
        assert set(document) == set(schema)


def test_the_check_of_the_fields_finds_faults():
    good = next(yaml.safe_load_all(kubernetes(ClusterJob("train.py", image="i"), "secret")))
    assert faults({**good, "kind": "Servant"}, DOCUMENTS[0]) == ["kind is 'Servant'"]
    assert faults({**good, "speck": {}}, DOCUMENTS[0]) == [".speck is unknown"]


def test_what_belongs_together_in_the_manifest():
    cluster = ClusterJob("train.py", name="my-job", workers=4, gpus=8, image="registry/me/train:1", restarts=5)
    service, secret, job = yaml.safe_load_all(kubernetes(cluster, "1e9"))
    spec = job["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    assert service["metadata"]["name"] == pod["subdomain"] == job["metadata"]["name"] == "my-job"
    assert service["spec"]["selector"] == {"job-name": "my-job"}
    assert service["spec"]["ports"][0]["port"] == container["ports"][0]["containerPort"]
    assert (spec["completions"], spec["parallelism"], spec["backoffLimitPerIndex"]) == (4, 4, 5)
    assert container["image"] == "registry/me/train:1"
    assert container["resources"] == {
        "requests": {"cpu": "64", "memory": "256Gi", "nvidia.com/gpu": 8},
        "limits": {"memory": "256Gi", "nvidia.com/gpu": 8},
    }
    (mount,), (volume,) = container["volumeMounts"], pod["volumes"]
    assert mount == {"name": volume["name"], "mountPath": "/dev/shm"}
    assert volume["emptyDir"] == {"medium": "Memory", "sizeLimit": "1Gi"}
    assert secret["stringData"] == {"token": "1e9"}  # A string, though it could be read as a number.
    (reference,) = [variable["valueFrom"]["secretKeyRef"] for variable in container["env"] if "valueFrom" in variable]
    assert reference == {"name": secret["metadata"]["name"], "key": "token"}


def test_exit_codes_in_the_manifest():
    rules = list(yaml.safe_load_all(kubernetes(ClusterJob("train.py", image="i"), "")))[2]["spec"]["podFailurePolicy"][
        "rules"
    ]
    by_code = {code: rule["action"] for rule in rules for code in rule.get("onExitCodes", {}).get("values", [])}
    assert by_code == {2: "FailJob", 72: "FailJob", 71: "Ignore", 75: "Ignore"}
    for rule in rules:
        values = rule.get("onExitCodes", {"values": []})["values"]
        assert values == sorted(set(values))  # The API refuses others.
        assert ("onExitCodes" in rule) != ("onPodConditions" in rule)


def test_a_pod_starts_the_script_as_the_worker_that_it_is(programs, tmp_path: Path):
    cluster = ClusterJob("train.py", ARGUMENTS, "my-job", 3, devices=8, image="i")
    (container,) = list(yaml.safe_load_all(kubernetes(cluster, "")))[2]["spec"]["template"]["spec"]["containers"]
    # What the kubelet does with arguments.
    command = [*container["command"], *(argument.replace("$$(", "$(") for argument in container["args"])]
    plain = {variable["name"]: variable["value"] for variable in container["env"] if "value" in variable}
    subprocess.run(command, env={**programs(python=0), **plain, "JOB_COMPLETION_INDEX": "2"}, check=True, timeout=30)
    assert words(tmp_path / "python.args") == ["train.py", *ARGUMENTS]
    environment = dict(word.split("=", 1) for word in words(tmp_path / "env"))
    addresses = [f"my-job-{index}.my-job:12345" for index in range(3)]
    role = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": 2}}
    assert json.loads(environment["TF_CONFIG"]) == role
    assert environment["JAX_COORDINATOR_ADDRESS"] == addresses[0]
    assert (environment["JAX_NUM_PROCESSES"], environment["JAX_PROCESS_ID"]) == ("3", "2")
    assert (environment["JAX_NUM_CPU_DEVICES"], environment["NPROC"]) == ("8", "16")


def test_kubernetes_needs_an_image():
    with pytest.raises(LaunchError, match="--image must name a container image with replicax and your script in it"):
        kubernetes(ClusterJob("train.py"), "")
