"""Custom jobs of Vertex AI."""

import json

import pytest
import yaml

from replicax.cluster import detect_cluster
from replicax.errors import LaunchError
from replicax.job.templates import ClusterJob, vertex

JOB = ClusterJob("train.py", ("--epochs", "3"), image="i", workers=3)


def pools(job, *arguments):
    return yaml.safe_load(vertex(job, "secret", *arguments))["workerPoolSpecs"]


def test_the_chief_has_a_pool_of_its_own():
    first, second = pools(JOB, "n1-standard-8")
    assert (first["replicaCount"], second["replicaCount"]) == (1, 2)
    assert first["machineSpec"] == {"machineType": "n1-standard-8"}
    assert first["containerSpec"]["imageUri"] == "i"
    assert first["containerSpec"]["args"] == ["--epochs", "3"]
    assert {"name": "KERAS_BACKEND", "value": "jax"} in first["containerSpec"]["env"]
    assert {"name": "REPLICAX_TOKEN", "value": "secret"} in first["containerSpec"]["env"]
    assert second["containerSpec"] == first["containerSpec"]


def test_one_worker_needs_one_pool():
    assert len(pools(ClusterJob("train.py", image="i", workers=1), "n1-standard-8")) == 1


def test_gpus_have_a_type():
    (first, _) = pools(ClusterJob("train.py", image="i", gpus=2), "n1-standard-8", "NVIDIA_TESLA_T4")
    assert first["machineSpec"]["acceleratorCount"] == 2
    assert first["machineSpec"]["acceleratorType"] == "NVIDIA_TESLA_T4"


@pytest.mark.parametrize(
    ("job", "machine", "accelerator", "words"),
    [
        (ClusterJob("train.py"), "m", None, "--image"),
        (JOB, "", None, "--machine"),
        (JOB, "m", "NVIDIA_TESLA_T4", "belong together"),
        (ClusterJob("train.py", image="i", gpus=1), "m", None, "belong together"),
    ],
)
def test_what_is_missing_is_named(job, machine, accelerator, words):
    with pytest.raises(LaunchError, match=words):
        vertex(job, "secret", machine, accelerator)


def test_what_vertex_tells_its_workers_is_understood():
    """As Google's documentation of TF_CONFIG on Vertex AI shows it, with a chief and workers."""
    cluster = {"chief": ["job-workerpool0-0:2222"], "worker": ["job-workerpool1-0:2222", "job-workerpool1-1:2222"]}
    told = {"cluster": cluster, "environment": "cloud", "task": {"type": "worker", "index": 1}}
    config = detect_cluster({"TF_CONFIG": json.dumps(told)}).config
    assert (config.num_processes, config.process_id, config.is_chief) == (3, 2, False)
