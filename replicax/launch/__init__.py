"""Jobs of processes: `replicax run` on this machine and elsewhere, and manifests for clusters of many machines."""

from replicax.launch.job import launch
from replicax.launch.joining import join
from replicax.launch.options import Options, check_script, parse_elastic, parse_workers
from replicax.launch.remote_job import Elsewhere, check_elsewhere, launch_elsewhere, parse_hosts, parse_variables
from replicax.remote.terminal import Terminal

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
