"""What `replicax doctor` looks at: software, devices, the cluster, this machine, and a real all-reduce."""

from replicax.launch.doctor.diagnosis import Diagnosis, diagnose
from replicax.launch.doctor.findings import SCHEMA_VERSION, Finding, Status

__all__ = ["SCHEMA_VERSION", "Diagnosis", "Finding", "Status", "diagnose"]
