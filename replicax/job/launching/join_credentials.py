"""How to join an elastic job: its launcher's address and its secret, in the folder for its logs or told by the user."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from replicax.checks.environment_names import TOKEN
from replicax.cluster.addresses import Address, parse_address
from replicax.errors import ClusterError, LaunchError

#: The file in a job's folder for logs by which processes of the same user may join it.
INVITATION = "join.json"


class JoinCredentials(NamedTuple):
    """All that a worker needs to join a job."""

    address: Address  # where the job's launcher listens
    token: str


def write_invitation(folder: Path, address: str, token: str) -> None:
    """Writes how to join a job; only this user can read it."""
    path = folder / INVITATION
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        json.dump({"address": address, "token": token}, file)


def invitation_to(where: str, environment: Mapping[str, str]) -> JoinCredentials:
    """Returns how to join a job, given its launcher's `"host:port"` or its folder for logs."""
    if os.path.isdir(where):
        try:
            found = json.loads((Path(where) / INVITATION).read_text(encoding="utf-8"))
            return JoinCredentials(parse_address(found["address"], "address"), str(found["token"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise LaunchError(f"--join {where}: no elastic job has left an invitation there ({error}).") from error
    try:
        address = parse_address(where, "--join")
    except ClusterError as error:
        raise LaunchError(f"--join must be HOST:PORT or the --log-dir of a running job: {error}") from error
    token = environment.get(TOKEN, "")
    if not token:
        raise LaunchError(f"--join {where} needs the job's secret: set {TOKEN} to that of its launcher.")
    return JoinCredentials(address, token)
