"""The manifest holds what KubeRay asks for; there is no cluster here to try it on."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from replicax.errors import LaunchError
from replicax.job.templates import ClusterJob, kuberay
from tests.job.templates.arguments import ARGUMENTS, words
from tests.job.templates.schemas import faults

# The fields of KubeRay's and Kubernetes's APIs that the manifest may use, with their types.
CONTAINER = {
    "name": str,
    "image": str,
    "env": [{"name": str, "value": str}],
    "resources": {"requests": dict, "limits": dict},
}
POD = {"spec": {"containers": [CONTAINER], "terminationGracePeriodSeconds": int}}
STARTED = {"num-cpus": str, "num-gpus": str}  # Ray's options are strings there.
GROUP = {
    "groupName": str,
    "replicas": int,
    "minReplicas": int,
    "maxReplicas": int,
    "rayStartParams": STARTED,
    "template": POD,
}
CLUSTER = {
    "authOptions": {"mode": {"token"}},
    "headGroupSpec": {"rayStartParams": STARTED, "template": POD},
    "workerGroupSpecs": [GROUP],
}
JOB = {
    "apiVersion": {"ray.io/v1"},
    "kind": {"RayJob"},
    "metadata": {"name": str},
    "spec": {"entrypoint": str, "backoffLimit": int, "shutdownAfterJobFinishes": bool, "rayClusterSpec": CLUSTER},
}


@pytest.mark.parametrize(
    "cluster",
    [ClusterJob("train.py", image="i"), ClusterJob("train.py", ARGUMENTS, "my-job", 4, gpus=8, image="i")],
)
def test_the_manifest_has_the_fields_of_the_api(cluster: ClusterJob):
    assert faults(yaml.safe_load(kuberay(cluster)), JOB) == []


def test_each_worker_has_a_pod_and_the_head_has_none():
    job = yaml.safe_load(kuberay(ClusterJob("train.py", name="my-job", workers=4, gpus=8, image="registry/train:1")))
    cluster = job["spec"]["rayClusterSpec"]
    (group,) = cluster["workerGroupSpecs"]
    assert job["metadata"]["name"] == "my-job"
    assert group["replicas"] == group["minReplicas"] == group["maxReplicas"] == 4
    assert group["rayStartParams"] == {"num-cpus": "64", "num-gpus": "8"}
    assert cluster["headGroupSpec"]["rayStartParams"] == {"num-cpus": "0", "num-gpus": "0"}
    (worker,) = group["template"]["spec"]["containers"]
    assert worker["resources"]["limits"] == {"memory": "256Gi", "nvidia.com/gpu": 8}
    (head,) = cluster["headGroupSpec"]["template"]["spec"]["containers"]
    assert head["image"] == worker["image"] == "registry/train:1"


def test_the_script_gets_its_arguments_as_they_were_written(programs, tmp_path: Path):
    cluster = ClusterJob("train.py", ARGUMENTS, workers=3, devices=2, restarts=5, image="i")
    spec = yaml.safe_load(kuberay(cluster))["spec"]
    (head,) = spec["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"]
    # The operator pastes the entrypoint into a shell script of the submitter, whose command joins the words again.
    submitter = 'import subprocess, sys; print(subprocess.list2cmdline(sys.argv[1:]), end="")'
    entrypoint = spec["entrypoint"].replace("/tmp/", f"{tmp_path}/")
    shown = f"python3 -c '{submitter}' {entrypoint} ;"
    joined = subprocess.run(["bash", "-c", shown], check=True, timeout=30, capture_output=True, text=True).stdout
    # The kubelet fills in variables of the container; Ray starts the job with a shell.
    variables = {each["name"]: each["value"].replace("$$(", "$(") for each in head["env"]}
    subprocess.run(["sh", "-c", joined], env={**programs(replicax=0), **variables}, check=True, timeout=30)
    own = ["run", "--on", "auto", "--workers", "3", "--restarts", "5", "--devices-per-worker", "2"]
    assert words(tmp_path / "replicax.args") == [*own, "train.py", *ARGUMENTS]


def test_it_needs_an_image():
    with pytest.raises(LaunchError, match=r"--image must name a container image with replicax\[ray\] and your script"):
        kuberay(ClusterJob("train.py"))
