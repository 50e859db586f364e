"""Islands: workers whose loss the others can bear. A lost one is started again alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from replicax.exit_codes import ExitCode, is_restartable
from replicax.launch.options import Options
from replicax.launch.plan import WORKER
from replicax.membership.decisions import Life
from replicax.membership.hosting import Host
from replicax.membership.opening import LIFE
from replicax.remote.output import error_line, shortened
from replicax.remote.planned import PlannedTask
from replicax.remote.processes import FoundSilent, ProcessLike
from replicax.remote.supervisor import Failure
from replicax.remote.terminal import Terminal


class Islands:
    """Decides about the islands of one attempt that fail; see `replicax.remote.supervisor.Revival`.

    Args:
        options: How many may be started again, and with how few the others go on.
        restarts: How many restarts are left.
        host: The host of their meeting.
        start: Starts a task once more.
        terminal: Where it says what has happened.

    Attributes:
        revived: How many were started again.
    """

    def __init__(
        self,
        options: Options,
        restarts: int,
        host: Host,
        start: Callable[[PlannedTask], ProcessLike],
        terminal: Terminal,
    ):
        self.revived = 0
        self._options, self._restarts, self._host = options, restarts, host
        self._start, self._terminal = start, terminal
        self._chief_is_done = False
        self._left = 0
        self._error = ""  # that of the script in which an island has ended last

    def bears(self, failure: Failure, running: Sequence[ProcessLike]) -> bool:
        """Returns whether the others can go on.

        They cannot if the failure is an error that a restart would only repeat, such as one that two islands raise one
        after the other; if the island itself says that the state of the training is lost (71); or if none of them is
        left.
        """
        task = failure.process.task
        if task.type != WORKER:
            return False
        self._host.tell_end(_life(task))
        self._left = left = sum(process.task.type == WORKER for process in running)
        error = error_line(failure.process.last_words) if failure.code == ExitCode.FAILED else ""
        same_again, self._error = bool(error) and error == self._error, error
        if same_again or not is_restartable(failure.code) or failure.code == ExitCode.PEER_LOST:
            return self._chief_is_done
        enough = self.revived < self._restarts or left >= self._options.fewest_left
        return self._chief_is_done or (left > 0 and enough)

    def successor(self, failure: Failure) -> ProcessLike | None:
        """Starts the island again, if a restart is left and the training is not done."""
        task = failure.process.task
        if self._chief_is_done or self.revived >= self._restarts:
            why = "the training is done" if self._chief_is_done else "no restart is left"
            how = "it came when the training was done" if self._came_too_late(failure) else failure.how
            goes_on = "The others go on without it" if self._left else "It does not start again"
            self._terminal.say(f"{task.name} ended with {how}. {goes_on}: {why}.")
            if failure.code == ExitCode.FAILED:
                words = shortened(failure.process.last_words) or "It printed nothing."
                self._terminal.show(f"Its log: {failure.process.log_path}\n\n{words}")
            return None
        self.revived += 1
        self._terminal.say(
            f"{task.name} ended with {failure.how}. It starts again (restart {self.revived} of {self._restarts}); the "
            "others go on."
        )
        life = str(_life(task).number + 1)
        return self._start(task.with_environment({**task.environment, LIFE: life}))

    def _came_too_late(self, failure: Failure) -> bool:
        return self._chief_is_done and failure.code == ExitCode.PEER_LOST

    def finds_silent(self, found: FoundSilent, running: Sequence[ProcessLike]) -> None:
        """Kills an island that shows no sign of life, such as a stopped one, so that it is started again."""
        for process in running:
            if process.task.name == found.task and _life(process.task).number == found.life:
                self._terminal.say(f"{found.task} shows no sign of life any more and is killed.")
                process.kill()

    def done(self, process: ProcessLike) -> None:
        """Notes whether the chief has ended as it should."""
        self._chief_is_done |= process.task.type == WORKER and process.task.index == 0


def _life(task: PlannedTask) -> Life:
    return Life(task.index, int(task.environment[LIFE]))
