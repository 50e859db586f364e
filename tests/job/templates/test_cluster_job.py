"""The options of a job for a real cluster, and what its workers get of them everywhere."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from replicax.errors import LaunchError
from replicax.job.templates import ClusterJob, kuberay, kubernetes, slurm
from tests.job.templates.arguments import words


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


def test_what_a_worker_gets_on_each_cluster(programs, tmp_path: Path):
    asked = {"cpus": 12, "memory": "48Gi", "shm": "500M", "image": "i"}
    cluster = ClusterJob("train.py", time="2-00:00:00", partition="gpu", setup="export FOUND=it", **asked)
    pod = list(yaml.safe_load_all(kubernetes(cluster, "")))[2]["spec"]["template"]["spec"]
    assert pod["containers"][0]["resources"] == {
        "requests": {"cpu": "12", "memory": "48Gi"},
        "limits": {"memory": "48Gi"},
    }
    assert pod["volumes"][0]["emptyDir"]["sizeLimit"] == "500Mi"
    (group,) = yaml.safe_load(kuberay(cluster))["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    assert group["template"]["spec"]["containers"][0]["resources"] == pod["containers"][0]["resources"]
    script = slurm(cluster)
    for line in ("--cpus-per-task=12", "--mem=48G", "--time=2-00:00:00", "--partition=gpu"):
        assert f"#SBATCH {line}\n" in script
    subprocess.run(["bash"], input=script, text=True, env=programs(srun=0), check=True, timeout=30)
    assert "FOUND=it" in words(tmp_path / "env")
