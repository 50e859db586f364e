"""Machines of Google Compute Engine: a script of gcloud commands."""

from __future__ import annotations

import json
import shlex

from replicax.checks import environment_names
from replicax.errors import LaunchError
from replicax.errors.exit_codes import ExitCode
from replicax.job.templates.cluster_job import SECONDS_TO_SAVE, ClusterJob

#: Where NVIDIA's driver is on Google's container-optimized system, and in the container.
_DRIVER = "/var/lib/nvidia"


def gce(cluster: ClusterJob, token: str, machine: str, zone: str, accelerator: str | None = None) -> str:
    """Returns a bash script that makes a machine for each worker; each runs the container, and then stops.

    The machines have Google's container-optimized system. Those of a worker that fails run it again, `restarts` times.
    """
    cluster.check_image()
    if not machine or not zone:
        raise LaunchError("--machine and --zone name a type of machine and a zone, such as n1-standard-8, us-west1-b.")
    if bool(cluster.gpus) != bool(accelerator):
        raise LaunchError("--gpus and --accelerator belong together, such as --gpus 1 --accelerator nvidia-tesla-t4.")
    options = [f"--zone={zone}", f"--machine-type={machine}", "--image-family=cos-stable", "--image-project=cos-cloud"]
    if accelerator:
        options += [f"--accelerator=type={accelerator},count={cluster.gpus}", "--maintenance-policy=TERMINATE"]
    names = [f"{cluster.name}-{index}" for index in range(cluster.workers)]
    return f"""\
#!/bin/bash
# bash this-file.sh
# Reads a worker's output: gcloud compute instances get-serial-port-output {names[0]} --zone={zone}
# Deletes the machines: gcloud compute instances delete {" ".join(names)} --zone={zone}
set -euo pipefail

start() {{ # INDEX
  cat <<'END' | sed "s/@INDEX@/$1/"
{_startup(cluster, token, [f"{name}:{cluster.port}" for name in names])}END
}}

pids=()
for index in $(seq 0 {cluster.workers - 1}); do
  gcloud compute instances create "{cluster.name}-$index" {shlex.join(options)} \\
    --metadata-from-file=startup-script=<(start "$index") &
  pids+=($!)
done
for pid in "${{pids[@]}}"; do wait "$pid"; done
"""


def _startup(cluster: ClusterJob, token: str, addresses: list[str]) -> str:
    """Returns what a machine runs when it starts: the container, again after a failure, and then its own end."""
    place = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": "@INDEX@"}}
    told = json.dumps(place).replace('"@INDEX@"', "@INDEX@")
    variables = {
        "KERAS_BACKEND": "jax",
        "PYTHONUNBUFFERED": "1",
        "TF_CONFIG": told,
        environment_names.TOKEN: token,
        **cluster.device_variables,
    }
    run = ["docker", "run", "--rm", "--network=host", f"--shm-size={cluster.shm.lower()}"]
    prepare = ""
    if cluster.gpus:
        prepare = f"cos-extensions install gpu\nmount --bind {_DRIVER} {_DRIVER}\nmount -o remount,exec {_DRIVER}\n"
        run += [f"--volume={_DRIVER}/{part}:/usr/local/nvidia/{part}" for part in ("lib64", "bin")]
        devices = [*(f"nvidia{number}" for number in range(cluster.gpus)), "nvidia-uvm", "nvidiactl"]
        run += [f"--device=/dev/{device}" for device in devices]
    run += [part for name, value in variables.items() for part in ("--env", f"{name}={value}")]
    run += [f"--stop-timeout={SECONDS_TO_SAVE}", cluster.image, *shlex.split(cluster.command)]
    return f"""\
#!/bin/bash
{prepare}attempt=0
while true; do
  {shlex.join(run)}
  code=$?
  # {ExitCode.RESUME:d}: saved, to be resumed. {ExitCode.USAGE:d} and {ExitCode.DIVERGED:d} would only come again.
  case $code in
    0 | {ExitCode.USAGE:d} | {ExitCode.DIVERGED:d}) break ;;
    {ExitCode.RESUME:d}) ;;
    *) [ "$attempt" -lt {cluster.restarts} ] || break; attempt=$((attempt + 1)) ;;
  esac
done
echo "worker @INDEX@ ended with exit code $code"
shutdown -h now
"""
