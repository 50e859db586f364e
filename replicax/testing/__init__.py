"""For tests of distributed programs: real processes with virtual devices, on this machine.

The pytest plugin that comes with the package offers the same as a fixture, `cluster`, and the option
`--replicax-logs DIR`, which keeps what all workers print.
"""

from replicax.checks.environment_names import TEST_LOGS as LOGS_VARIABLE
from replicax.testing.cables import why_no_cables
from replicax.testing.devices import simulated_devices
from replicax.testing.elastic_job import ElasticJob
from replicax.testing.parameter_server import local_cluster
from replicax.testing.strategy_checks import check_strategy
from replicax.testing.workers import Cluster, distributed, free_ports, run_workers

__all__ = [
    "LOGS_VARIABLE",
    "Cluster",
    "ElasticJob",
    "check_strategy",
    "distributed",
    "free_ports",
    "local_cluster",
    "run_workers",
    "simulated_devices",
    "why_no_cables",
]
