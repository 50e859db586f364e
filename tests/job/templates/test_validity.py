"""Manifests are valid for the tools that read them: their published schemas, and shellcheck.

`published/` has the schemas of Compose, of a JobSet and of a RayJob, each with where it is from. Unknown fields are
faults. What a JobSet's Job and a RayJob's pods hold is checked with Kubernetes's own schemas.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from replicax.job.templates import ClusterJob, compose, jobset, kuberay, kubernetes, slurm
from tests.job.templates.arguments import ARGUMENTS

PUBLISHED = Path(__file__).parent / "published"
CLUSTERS = (
    ClusterJob("train.py", image="i"),
    ClusterJob("train.py", ARGUMENTS, "my-job", workers=4, gpus=8, restarts=0, image="registry/i:1", partition="gpu"),
)


@pytest.mark.nightly
@pytest.mark.parametrize("cluster", CLUSTERS)
def test_kubernetes_accepts_the_manifests(cluster: ClusterJob):
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    for manifest in yaml.safe_load_all(kubernetes(cluster, "secret")):
        kubernetes_validate.validate(manifest, "1.29", strict=True)
    secret, group = yaml.safe_load_all(jobset(cluster, "secret"))
    kubernetes_validate.validate(secret, "1.29", strict=True)
    (job,) = group["spec"]["replicatedJobs"]  # The JobSet's own kind is no part of Kubernetes; its Job is.
    whole = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": job["name"]}, **job["template"]}
    kubernetes_validate.validate(whole, "1.29", strict=True)
    whole["spec"]["completions"] = "four"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(whole, "1.29", strict=True)


@pytest.mark.nightly
@pytest.mark.parametrize("cluster", CLUSTERS)
def test_a_pod_of_ray_is_a_pod(cluster: ClusterJob):
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    parts = yaml.safe_load(kuberay(cluster))["spec"]["rayClusterSpec"]
    for group in (parts["headGroupSpec"], *parts["workerGroupSpecs"]):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, **group["template"]}
        kubernetes_validate.validate(pod, "1.29", strict=True)


@pytest.mark.nightly
@pytest.mark.parametrize("cluster", CLUSTERS)
def test_the_published_schemas_of_others_accept_the_manifests(cluster: ClusterJob):
    jsonschema = pytest.importorskip("jsonschema")
    found = {
        "compose": yaml.safe_load(compose(cluster, "secret")),
        "jobset": list(yaml.safe_load_all(jobset(cluster, "secret")))[1],
        "rayjob": yaml.safe_load(kuberay(cluster)),
    }
    for name, manifest in found.items():
        schema = jsonschema.Draft7Validator(json.loads((PUBLISHED / f"{name}.json").read_text()))
        schema.validate(manifest)
        inside: dict[str, Any] = manifest.get("spec") or manifest["services"]["worker-0"]
        inside["restrats"] = 3
        with pytest.raises(jsonschema.ValidationError, match="restrats"):
            schema.validate(manifest)


def _shellcheck(script: str, shell: str) -> str:
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed (Debian: apt-get install shellcheck).")
    # SC2016 and SC1003 ask whether the user's own arguments, which hold $ and \\, are quoted on purpose: they are.
    command = ["shellcheck", f"--shell={shell}", "--exclude=SC2016,SC1003", "-"]
    return subprocess.run(command, input=script, capture_output=True, text=True, timeout=60).stdout


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_shellcheck_finds_nothing_in_a_batch_script(cluster: ClusterJob):
    assert _shellcheck(slurm(cluster), "bash") == ""
    assert "SC2154" in _shellcheck(slurm(cluster).replace("code=$?", ""), "bash")


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_shellcheck_finds_nothing_in_the_script_of_a_pod(cluster: ClusterJob):
    job = list(yaml.safe_load_all(kubernetes(cluster, "")))[2]
    (script,) = job["spec"]["template"]["spec"]["containers"][0]["args"]
    assert _shellcheck(script, "sh") == ""
