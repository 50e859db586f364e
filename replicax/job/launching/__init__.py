"""The jobs of `replicax run`: on this machine, elsewhere, and one more worker for a job that runs."""

from replicax.job.launching.joining import join
from replicax.job.launching.local_job import launch
from replicax.job.launching.remote_job import Elsewhere, check_elsewhere, launch_elsewhere, parse_hosts, parse_variables
from replicax.job.options import Options, check_script, parse_elastic, parse_workers
from replicax.job.processes.terminal import Terminal

__all__ = [
    "Elsewhere",
    "Options",
    "Terminal",
    "check_elsewhere",
    "check_script",
    "join",
    "launch",
    "launch_elsewhere",
    "parse_elastic",
    "parse_hosts",
    "parse_variables",
    "parse_workers",
]
