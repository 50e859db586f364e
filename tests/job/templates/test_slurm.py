"""The batch script does what Slurm and the exit codes ask for; there is no cluster here to try it on."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from replicax.job.templates import ClusterJob, slurm
from tests.job.templates.arguments import ARGUMENTS, words


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
