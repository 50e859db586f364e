"""The file is one that Docker Compose reads, where it is there; its containers get what they were written."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from replicax.errors import LaunchError
from replicax.job.templates import ClusterJob, compose
from tests.job.templates.arguments import ARGUMENTS


def test_each_worker_has_a_service():
    text = compose(ClusterJob("train.py", ARGUMENTS, workers=3, gpus=2, image="me/i", memory="8Gi"), "secret")
    services = yaml.safe_load(text)["services"]
    assert list(services) == ["worker-0", "worker-1", "worker-2"]
    last = services["worker-2"]
    variables = last["environment"]
    told = json.loads(variables["TF_CONFIG"])
    assert told["cluster"]["worker"] == [f"worker-{index}:12345" for index in range(3)]
    assert (told["task"]["index"], variables["JAX_PROCESS_ID"], variables["REPLICAX_TOKEN"]) == (2, "2", "secret")
    assert [word.replace("$$", "$") for word in last["command"]] == ["python", "train.py", *ARGUMENTS]
    assert last["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"] == ["4", "5"]
    assert last["mem_limit"] == "8g"


def _has_compose() -> bool:
    docker = shutil.which("docker")
    return docker is not None and subprocess.run([docker, "compose", "version"], capture_output=True).returncode == 0


def test_docker_compose_reads_it(tmp_path: Path):
    if not _has_compose():
        pytest.skip("Docker Compose is not installed.")
    path = tmp_path / "compose.yaml"
    path.write_text(compose(ClusterJob("train.py", ARGUMENTS, image="me/i", gpus=1), "secret"))
    command = ["docker", "compose", "-f", str(path), "config", "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    worker = json.loads(done.stdout)["services"]["worker-1"]
    assert [word.replace("$$", "$") for word in worker["command"]] == ["python", "train.py", *ARGUMENTS]


def test_it_needs_an_image():
    with pytest.raises(LaunchError, match="--image must name a container image"):
        compose(ClusterJob("train.py"), "")
