"""The manifests hold what the clusters' programs ask for; there is no cluster here to try them on."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from replicax.errors import LaunchError
from replicax.launch.templates import ClusterJob, kubernetes, slurm

ARGUMENTS = ("--epochs", "3", "it's", "$HOME", "$(NAME)", "a\nb", '"', "\\")

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


def faults(value: Any, schema: Any, where: str = "") -> list[str]:
    """Returns where `value` is not of `schema`: a type, a set of values, a list of one kind, or a mapping of fields."""
    if isinstance(schema, dict):
        if not isinstance(value, dict):
            return [f"{where} is no mapping"]
        unknown = [f"{where}.{name} is unknown" for name in value.keys() - schema.keys()]
        return unknown + [fault for name in value.keys() & schema for fault in faults(value[name], schema[name], name)]
    if isinstance(schema, list):
        if not isinstance(value, list) or not value:
            return [f"{where} is no list"]
        return [fault for item in value for fault in faults(item, schema[0], where)]
    if isinstance(schema, set):
        return [] if value in schema else [f"{where} is {value!r}"]
    return [] if type(value) is schema else [f"{where} is {value!r}"]


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


@pytest.fixture
def programs(tmp_path: Path) -> Callable[..., dict[str, str]]:
    """Makes programs that write their arguments and end with a given code; returns an environment that finds them."""

    def make(**codes: int) -> dict[str, str]:
        for name, code in codes.items():
            path = tmp_path / "bin" / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(
                f'#!/bin/sh\nprintf "%s\\0" "$@" > "{tmp_path}/{name}.args"\nenv -0 > "{tmp_path}/env"\nexit {code}\n'
            )
            path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return {"PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"}

    return make


def words(path: Path) -> list[str]:
    return path.read_text().split("\0")[:-1]


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


@pytest.mark.parametrize(
    ("code", "restart", "again"),
    [(0, 0, False), (2, 0, False), (72, 0, False), (75, 9, True), (1, 0, True), (137, 1, True), (1, 2, False)],
)
def test_the_batch_script(code: int, restart: int, again: bool, programs, tmp_path: Path):
    script = slurm(ClusterJob("train.py", ARGUMENTS, "my-job", 4, gpus=2, restarts=2))
    subprocess.run(["bash", "-n"], input=script, text=True, check=True, timeout=30)
    environment = {**programs(srun=code, scontrol=0), "SLURM_JOB_ID": "12", "SLURM_RESTART_COUNT": str(restart)}
    done = subprocess.run(["bash"], input=script, text=True, env=environment, check=False, timeout=30)
    assert done.returncode == code
    assert words(tmp_path / "srun.args") == [
        *("--label", "--kill-on-bad-exit=0", "--wait=120", "python", "train.py"),
        *ARGUMENTS,
    ]
    requeued = tmp_path / "scontrol.args"
    assert (words(requeued) if requeued.exists() else None) == (["requeue", "12"] if again else None)


def test_the_head_of_the_batch_script(programs, tmp_path: Path):
    script = slurm(ClusterJob("train.py", name="my-job", workers=4, gpus=2))
    head = [line.removeprefix("#SBATCH --") for line in script.splitlines() if line.startswith("#SBATCH")]
    assert head == [
        "job-name=my-job",
        "nodes=4",
        "ntasks-per-node=1",
        "cpus-per-task=16",
        "mem=64G",
        "time=24:00:00",
        "gpus-per-node=2",
        "output=my-job-%j.log",
        "open-mode=append",
        "requeue",
        "signal=TERM@120",
    ]
    assert "gpus" not in slurm(ClusterJob("train.py"))
    subprocess.run(["bash"], input=script, text=True, env=programs(srun=0), check=True, timeout=30)
    environment = dict(word.split("=", 1) for word in words(tmp_path / "env"))
    assert environment["JAX_LOCAL_DEVICE_IDS"] == "0,1"
    assert environment["SRUN_CPUS_PER_TASK"] == "16"
    assert environment["REPLICAX_ATTEMPT"] == "0"
    assert len(bytes.fromhex(environment["REPLICAX_TOKEN"])) == 16


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"script": ""}, "No script is named"),
        ({"name": "my_job"}, "--name must be .* Got 'my_job'"),
        ({"name": "4ever"}, "--name"),
        ({"name": "job-"}, "--name"),
        ({"name": "a" * 51}, "--name"),
        ({"workers": 0}, "--workers must be at least 1, got 0"),
        ({"devices": 0}, "--devices must be at least 1"),
        ({"gpus": -1}, "--gpus must be at least 0"),
        ({"restarts": -1}, "--restarts must be at least 0"),
        ({"image": "a b"}, "--image must be the name"),
        ({"cpus": 0}, "the number of CPUs must be at least 1"),
        ({"memory": "much"}, "The memory must be a size such as 32G or 500M, got 'much'"),
        ({"shm": "0G"}, "--shm must be a size"),
        ({"time": "1 day"}, "--time must be minutes, HH:MM:SS or D-HH:MM:SS, got '1 day'"),
        ({"partition": ""}, "--partition must be the name"),
    ],
)
def test_what_is_no_cluster(options: dict[str, Any], says: str):
    with pytest.raises(LaunchError, match=says):
        ClusterJob(**{"script": "train.py", **options})


def test_kubernetes_needs_an_image():
    with pytest.raises(LaunchError, match="--image must name a container image with replicax and your script in it"):
        kubernetes(ClusterJob("train.py"), "")


def test_what_a_worker_gets_on_each_cluster(programs, tmp_path: Path):
    asked = {"cpus": 12, "memory": "48Gi", "shm": "500M", "image": "i"}
    cluster = ClusterJob("train.py", time="2-00:00:00", partition="gpu", setup="export FOUND=it", **asked)
    pod = list(yaml.safe_load_all(kubernetes(cluster, "")))[2]["spec"]["template"]["spec"]
    assert pod["containers"][0]["resources"] == {
        "requests": {"cpu": "12", "memory": "48Gi"},
        "limits": {"memory": "48Gi"},
    }
    assert pod["volumes"][0]["emptyDir"]["sizeLimit"] == "500Mi"
    script = slurm(cluster)
    for line in ("--cpus-per-task=12", "--mem=48G", "--time=2-00:00:00", "--partition=gpu"):
        assert f"#SBATCH {line}\n" in script
    subprocess.run(["bash"], input=script, text=True, env=programs(srun=0), check=True, timeout=30)
    assert "FOUND=it" in words(tmp_path / "env")


def test_a_job_whose_environment_does_not_come_up_ends_at_once(programs, tmp_path: Path):
    script = slurm(ClusterJob("train.py", setup="source no/such/environment"))
    environment = {**programs(srun=0, scontrol=0), "SLURM_JOB_ID": "12"}
    done = subprocess.run(
        ["bash"], input=script, text=True, env=environment, check=False, timeout=30, capture_output=True
    )
    assert done.returncode != 0
    assert "no/such/environment" in done.stderr
    assert not (tmp_path / "srun.args").exists()
    assert not (tmp_path / "scontrol.args").exists()


@pytest.mark.parametrize("time", ["90", "30:00", "24:00:00", "1-12", "1-12:30", "7-00:00:00"])
def test_times_as_slurm_writes_them(time: str):
    assert f"#SBATCH --time={time}\n" in slurm(ClusterJob("train.py", time=time))
