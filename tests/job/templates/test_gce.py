"""Machines of Google Compute Engine: the commands that make them, and what each of them runs."""

from __future__ import annotations

import json
import shlex
import subprocess

import pytest

from replicax.cluster import detect_cluster
from replicax.errors import LaunchError
from replicax.job.templates import ClusterJob, gce
from tests.job.templates.arguments import ARGUMENTS, words

JOB = ClusterJob("train.py", ARGUMENTS, "my-job", 3, image="i", restarts=2)


def made(script: str, tmp_path) -> tuple[list[str], str]:
    """Runs the script with a gcloud that notes its arguments; returns those of worker 0, and its startup script."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "gcloud"
    program.write_text(
        '#!/bin/bash\nprintf "%s\\0" "$@" > "$4.args"\n'
        'for each; do case $each in --metadata-from-file=*) cat "${each##*=}" > "$4.sh";; esac; done\n'
    )
    program.chmod(0o755)
    environment = {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"}
    subprocess.run(["bash"], input=script, text=True, env=environment, cwd=tmp_path, check=True, timeout=30)
    names = sorted(path.stem for path in tmp_path.glob("*.sh"))
    assert names == ["my-job-0", "my-job-1", "my-job-2"]
    return words(tmp_path / "my-job-1.args"), (tmp_path / "my-job-1.sh").read_text()


def test_each_worker_gets_a_machine_that_knows_its_place(tmp_path):
    arguments, startup = made(gce(JOB, "secret", "n1-standard-8", "us-west1-b"), tmp_path)
    assert arguments[:6] == [
        *("compute", "instances", "create", "my-job-1", "--zone=us-west1-b", "--machine-type=n1-standard-8")
    ]
    subprocess.run(["bash", "-n"], input=startup, text=True, check=True, timeout=30)
    run = shlex.split(startup[startup.index("docker run") : startup.index("  code=$?")])
    assert run[-len(ARGUMENTS) - 3 :] == ["i", "python", "train.py", *ARGUMENTS]
    variables = dict(run[place + 1].split("=", 1) for place, word in enumerate(run) if word == "--env")
    assert variables["REPLICAX_TOKEN"] == "secret"
    assert json.loads(variables["TF_CONFIG"])["task"] == {"type": "worker", "index": 1}
    found = detect_cluster({"TF_CONFIG": variables["TF_CONFIG"]}).config
    assert (found.num_processes, found.process_id, found.coordinator_address) == (3, 1, "my-job-0:12345")


@pytest.mark.parametrize(("codes", "runs"), [([0], 1), ([72], 1), ([75, 75, 75, 0], 4), ([1, 71, 1], 3), ([1, 0], 2)])
def test_a_worker_that_fails_runs_again(codes, runs, tmp_path):
    _, startup = made(gce(JOB, "secret", "n1-standard-8", "us-west1-b"), tmp_path)
    (tmp_path / "codes").write_text("\n".join(map(str, codes)) + "\n")
    docker = tmp_path / "bin" / "docker"
    docker.write_text('#!/bin/bash\necho >> runs\ncode=$(head -1 codes); sed -i 1d codes; exit "$code"\n')
    (tmp_path / "bin" / "shutdown").write_text("#!/bin/bash\ntouch ended\n")
    for program in (docker, tmp_path / "bin" / "shutdown"):
        program.chmod(0o755)
    environment = {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"}
    subprocess.run(["bash"], input=startup, text=True, env=environment, cwd=tmp_path, check=True, timeout=30)
    assert len((tmp_path / "runs").read_text().splitlines()) == runs
    assert (tmp_path / "ended").exists()


def test_gpus_bring_their_driver_and_devices():
    script = gce(ClusterJob("train.py", image="i", gpus=2), "s", "n1-standard-8", "us-west1-b", "nvidia-tesla-t4")
    assert "--accelerator=type=nvidia-tesla-t4,count=2" in script
    assert "cos-extensions install gpu" in script
    assert "--device=/dev/nvidia1" in script


@pytest.mark.parametrize(
    ("job", "machine", "accelerator", "said"),
    [
        (ClusterJob("train.py"), "m", None, "--image"),
        (JOB, "", None, "--machine"),
        (JOB, "m", "nvidia-tesla-t4", "belong together"),
        (ClusterJob("train.py", image="i", gpus=1), "m", None, "belong together"),
    ],
)
def test_missing_options_are_named(job, machine, accelerator, said):
    with pytest.raises(LaunchError, match=said):
        gce(job, "secret", machine, "us-west1-b", accelerator)
