"""The environment variables that tell each client of a program its id."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

from replicax.errors import ArgumentError

JOBS = "DTENSOR_JOBS"
_CLIENT_ID, _JOB_NAME, _HEARTBEAT = "DTENSOR_CLIENT_ID", "DTENSOR_JOB_NAME", "DTENSOR_ENABLE_HEARTBEAT"
_SWITCH = {"true": True, "1": True, "false": False, "0": False}


@dataclasses.dataclass(frozen=True)
class ClientSettings:
    """The clients, as the environment describes them."""

    jobs: tuple[str, ...] = ()  # "host:port" of each client, which meet at the first; empty for one client
    client_id: int = 0  # of this process, a position in `jobs`
    job_name: str | None = None
    heartbeat: bool = True  # whether clients watch each other

    @property
    def num_clients(self) -> int:
        """Number of clients, 1 if no jobs are named."""
        return max(1, len(self.jobs))


def client_settings(environment: Mapping[str, str]) -> ClientSettings:
    """Reads the settings of the clients from an environment; a variable that is empty counts as not set."""
    jobs = tuple(job.strip() for job in environment[JOBS].split(",")) if environment.get(JOBS) else ()
    _check_jobs(jobs)
    heartbeat = environment.get(_HEARTBEAT) or "true"
    if heartbeat.lower() not in _SWITCH:
        raise ArgumentError(f"{_HEARTBEAT} must be one of {[*_SWITCH]}, got {heartbeat!r}.")
    return ClientSettings(
        jobs,
        _client_id(environment.get(_CLIENT_ID) or "0", max(1, len(jobs))),
        environment.get(_JOB_NAME) or None,
        _SWITCH[heartbeat.lower()],
    )


def _check_jobs(jobs: tuple[str, ...]) -> None:
    form = "Write 'host:port' for each client, separated by commas, such as '10.0.0.1:9898,10.0.0.2:9898'."
    for job in jobs:
        if not job:
            raise ArgumentError(f"{JOBS} has an empty entry: {','.join(jobs)!r}. {form}")
        host, _, port = job.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
            raise ArgumentError(f"{JOBS} has an entry without a host or port: {job!r}. {form}")
        if ":" in host and not (host.startswith("[") and host.endswith("]")):
            raise ArgumentError(f"{JOBS} has an IPv6 address without brackets: {job!r}. Write '[address]:port'.")
    repeated = sorted({job for job in jobs if jobs.count(job) > 1})
    if repeated:
        raise ArgumentError(f"{JOBS} names {repeated[0]!r} more than once. Each client has an address of its own.")


def _client_id(text: str, num_clients: int) -> int:
    client = int(text) if re.fullmatch(r"\s*-?\d+\s*", text) else -1
    if not 0 <= client < num_clients:
        raise ArgumentError(
            f"{_CLIENT_ID} must be an int from 0 to {num_clients - 1}, as {JOBS} names {num_clients} client(s) (none: "
            f"one), got {text!r}. The ids follow the order of {JOBS}."
        )
    return client
