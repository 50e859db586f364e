"""The jobs of `replicax run`: on this machine, elsewhere (`remote_job`), and one more worker for a job that runs."""

from replicax.job.launching.joining import join
from replicax.job.launching.local_job import launch
from replicax.job.options import Options, check_script, parse_elastic, parse_hosts, parse_variables, parse_workers
from replicax.job.processes.terminal import Terminal

__all__ = [
    "Options",
    "Terminal",
    "check_script",
    "join",
    "launch",
    "parse_elastic",
    "parse_hosts",
    "parse_variables",
    "parse_workers",
]
