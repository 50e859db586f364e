"""The needs of a job whose workers come and go: its store, and the log of its members."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from replicax.group.membership.membership_log import MembershipLog
from replicax.group.membership.store_process import Host
from replicax.job.options import Options
from replicax.job.processes.reaper import Guard


@contextlib.contextmanager
def job_store(address: str, token: str, guard: Guard) -> Iterator[Host]:
    """Keeps the store of a job at an address of this machine while the block runs."""
    host = Host(address, token)
    guard.watch([host.pid])
    try:
        yield host
    finally:
        host.close()
        guard.forget(host.pid)


def membership_log(options: Options, log_dir: Path, workers: int, attempt: int) -> MembershipLog | None:
    """Returns the log of the members of an elastic job, in which an attempt begins; None for another job."""
    if options.elastic is None:
        return None
    log = MembershipLog(log_dir)
    log.job(*options.elastic, workers, attempt)
    return log
