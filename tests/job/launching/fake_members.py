"""Workers that come and go, as fakes, for the decisions of the launcher."""

import io
import types

from replicax.group.membership.launcher_news import ElasticRange
from replicax.group.membership.membership_log import MembershipLog
from replicax.job.launching import Options, Terminal
from replicax.job.processes.task import PlannedTask
from replicax.job.supervision.elastic_policy import ElasticPolicy
from replicax.job.supervision.loss_policy import Failure
from replicax.job.supervision.member_record import MemberRecord


class Host:
    """The host of a meeting."""

    address = "127.0.0.1:7"

    def __init__(self):
        self.ended = []

    def tell_end(self, incarnation):
        self.ended.append(incarnation)


class Process(types.SimpleNamespace):
    """A worker's process."""

    pid, is_guest, log_path, told = 4, False, None, None

    def kill(self):
        self.killed = True


def process(index, incarnation=0, kind="worker", words="", has_left=False):
    """Returns a process."""
    environment = {"REPLICAX_LIFE": str(incarnation)}
    task = PlannedTask(kind, index, None, environment)
    return Process(task=task, last_words=words, killed=False, has_left=has_left)


def failure(of, code=137):
    """Returns the failure of a process."""
    return Failure(of, code, 0.0, of)


class Job:
    """The decisions about the workers of a job, and what was said.

    Args:
        restarts: The option.
        log_dir: Where the membership log is, if there is one.
        **options: More options.
    """

    def __init__(self, restarts=2, log_dir=None, **options):
        self.now, self.out = 100.0, io.StringIO()
        self.host = Host()
        wanted = Options("train.py", **{"workers": 3, "restarts": restarts, **options})
        member_record = MemberRecord(MembershipLog(log_dir) if log_dir is not None else None)
        self.members = ElasticPolicy(
            wanted,
            wanted.single_restarts,
            self.host,
            lambda task: Process(task=task, killed=False, last_words="", has_left=False),
            Terminal(self.out, self.out),
            member_record,
            lambda: self.now,
        )


def elastic(fewest=1, most=4, **options):
    """Returns an elastic job."""
    return Job(elastic=ElasticRange(fewest, most), **options)
