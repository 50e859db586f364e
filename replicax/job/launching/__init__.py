"""The jobs of `replicax run`: on this machine, and elsewhere (`remote_job`)."""

from replicax.job.launching.local_job import launch
from replicax.job.options import Options, check_script, parse_elastic, parse_hosts, parse_variables, parse_workers
from replicax.job.processes.terminal import Terminal

__all__ = [
    "Options",
    "Terminal",
    "check_script",
    "launch",
    "parse_elastic",
    "parse_hosts",
    "parse_variables",
    "parse_workers",
]
