"""A batch script for Slurm."""

from __future__ import annotations

from replicax.errors.exit_codes import ExitCode
from replicax.job.templates.cluster_job import SECONDS_TO_SAVE, ClusterJob


def slurm(cluster: ClusterJob) -> str:
    """Returns a batch script: one task on each node, which finds the others by Slurm's own variables."""
    gpus = f"#SBATCH --gpus-per-node={cluster.gpus}\n" if cluster.gpus else ""
    partition = f"#SBATCH --partition={cluster.partition}\n" if cluster.partition else ""
    setup = (
        cluster.setup or "# source /path/to/.venv/bin/activate   (what brings up the environment with replicax in it)"
    )
    exports = "".join(f"export {name}={value}\n" for name, value in cluster.device_variables.items())
    return f"""\
#!/bin/bash
# sbatch this-file.sh
#SBATCH --job-name={cluster.name}
#SBATCH --nodes={cluster.workers}
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task={cluster.num_cpus}
#SBATCH --mem={cluster.memory_size}
#SBATCH --time={cluster.time}
{partition}{gpus}#SBATCH --output={cluster.name}-%j.log
#SBATCH --open-mode=append
#SBATCH --requeue
# {SECONDS_TO_SAVE} seconds before the time is up the workers save and ask to be resumed.
#SBATCH --signal=TERM@{SECONDS_TO_SAVE}

set -e
{setup}
set +e -uo pipefail

export KERAS_BACKEND=jax PYTHONUNBUFFERED=1
export SRUN_CPUS_PER_TASK={cluster.num_cpus} # srun has not taken it from sbatch since Slurm 22.05.
{exports}# A secret for the processes of this job.
REPLICAX_TOKEN=$(head -c 16 /dev/urandom | od -An -v -tx1 | tr -d ' \\n')
export REPLICAX_TOKEN
export REPLICAX_ATTEMPT="${{SLURM_RESTART_COUNT:-0}}"

# When a worker has ended the others get time to save, and are then ended too.
srun --label --kill-on-bad-exit=0 --wait={SECONDS_TO_SAVE} {cluster.command}
code=$?

# {ExitCode.RESUME:d}: saved, to be resumed. Another failure is tried {cluster.restarts} time(s) again; \
{ExitCode.USAGE:d} and {ExitCode.DIVERGED:d} would only come again.
case $code in
  0 | {ExitCode.USAGE:d} | {ExitCode.DIVERGED:d}) ;;
  {ExitCode.RESUME:d}) scontrol requeue "$SLURM_JOB_ID" ;;
  *) [ "$REPLICAX_ATTEMPT" -lt {cluster.restarts} ] && scontrol requeue "$SLURM_JOB_ID" ;;
esac
exit "$code"
"""
