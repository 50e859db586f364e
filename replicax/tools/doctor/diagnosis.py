"""All checks, in order."""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from replicax.cluster import ClusterConfig, Detection
from replicax.cluster.environment import Environ
from replicax.errors.exit_codes import ExitCode
from replicax.tools.doctor.all_reduce import check_all_reduce
from replicax.tools.doctor.findings import SCHEMA_VERSION, Finding, Severity
from replicax.tools.doctor.found_devices import check_devices
from replicax.tools.doctor.machine import check_cache, check_clock
from replicax.tools.doctor.network import check_addresses, check_cluster, check_proxies
from replicax.tools.doctor.overrides import check_overrides
from replicax.tools.doctor.software import check_keras_backend, check_software

_WORST_LAST = (Severity.OK, Severity.WARN, Severity.FAIL)


@dataclasses.dataclass(frozen=True)
class DoctorReport:
    """All that was found."""

    findings: tuple[Finding, ...]  # in the order of the checks
    detection: Detection | None  # how the cluster was found; None if its description is malformed

    @property
    def status(self) -> Severity:
        """The worst of all findings."""
        return max((finding.status for finding in self.findings), key=_WORST_LAST.index, default=Severity.OK)

    @property
    def exit_code(self) -> int:
        """1 if anything fails, else 0."""
        return ExitCode.FAILED if self.status is Severity.FAIL else ExitCode.OK

    def as_dict(self) -> dict[str, object]:
        """Returns the report for JSON. Within a schema no name changes; findings and details may be added."""
        return {
            "schema": SCHEMA_VERSION,
            "status": self.status.value,
            "findings": [finding.as_dict() for finding in self.findings],
        }


def diagnose(environ: Environ | None = None, quick: bool = False) -> DoctorReport:
    """Looks at all that training needs."""
    variables: Environ = os.environ if environ is None else environ
    cluster, detection = check_cluster(variables)
    config = detection.config if detection else None
    findings = [
        *_of_this_process(variables),
        *cluster,
        *_of_the_network(variables, config),
        *_of_the_machine(variables),
    ]
    if not quick:
        findings.append(check_all_reduce(variables))
    return DoctorReport(tuple(findings), detection)


def _of_this_process(environ: Environ) -> Iterator[Finding]:
    yield from check_software()
    yield check_keras_backend(environ)
    yield check_overrides(environ)
    yield from check_devices(environ)


def _of_the_network(environ: Environ, config: ClusterConfig | None) -> Iterator[Finding]:
    if config is not None:
        yield from check_addresses(config, environ)
    yield check_proxies(environ, config)


def _of_the_machine(environ: Environ) -> Iterator[Finding]:
    here = Path.cwd()
    yield check_clock(here if os.access(here, os.W_OK) else Path(tempfile.gettempdir()))
    yield check_cache(environ)
