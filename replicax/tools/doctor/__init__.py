"""The checks of `replicax doctor`: software, devices, the cluster, this machine, and a real all-reduce."""

from replicax.tools.doctor.choosing import Choice, choose
from replicax.tools.doctor.diagnosis import DoctorReport, diagnose
from replicax.tools.doctor.findings import SCHEMA_VERSION, Finding, Severity
from replicax.tools.doctor.found_devices import find_devices

__all__ = [
    "SCHEMA_VERSION",
    "Choice",
    "DoctorReport",
    "Finding",
    "Severity",
    "choose",
    "diagnose",
    "find_devices",
]
