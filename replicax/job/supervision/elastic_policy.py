"""Workers whose loss the others can bear, islands or those of an elastic job: a lost one is started again alone.

The training of islands is done when worker 0 has ended with 0. An elastic job has no such worker: any may be lost. It
is done when a member of the newest world has ended with 0, since members come to the end of the script together. From
then on nobody is started again, and the job has succeeded if the chief of that world, its first member, ends with 0.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Sequence

from replicax.checks.environment_names import LIFE
from replicax.contracts.group import Incarnation
from replicax.errors.exit_codes import ExitCode, describe, is_restartable
from replicax.group.membership.store_process import Host
from replicax.job.options import Options
from replicax.job.plan import WORKER, member_environment
from replicax.job.processes.events import FoundSilent, JoinedWorkerLike, MemberNews, ProcessLike
from replicax.job.processes.output import error_line, shortened
from replicax.job.processes.task import PlannedTask
from replicax.job.processes.terminal import Terminal
from replicax.job.supervision.joined_workers import JoinedWorker
from replicax.job.supervision.loss_policy import Failure
from replicax.job.supervision.member_record import MemberRecord

_SHORTEST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0  # before a newcomer that could not join is started again
_SECONDS_OF_A_USEFUL_LIFE = 5.0
# Errors that may be over when the network is there again.
_OF_THE_NETWORK = re.compile("^[^ ]*(Timeout|Connection|OSError)")
_IN_THE_MIDDLE = "ended with exit code 0 in the middle of the job, by os._exit or the like."


class ElasticPolicy:
    """Decides about the workers of one attempt that come and go; see `LossPolicy`."""

    def __init__(
        self,
        options: Options,
        restarts: int,
        host: Host,
        start: Callable[[PlannedTask], ProcessLike],
        terminal: Terminal,
        member_record: MemberRecord | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.revived = 0
        self._options, self._restarts, self._host = options, restarts, host  # `restarts`: how many are left
        self._start, self._terminal, self._clock = start, terminal, clock
        self._member_record = member_record or MemberRecord()
        self._is_done = False  # the training
        self._left = 0
        self._error = ""  # that of the script in which a worker has ended last
        self._waiting: list[tuple[float, PlannedTask]] = []  # tasks to start, and when
        self._pauses: dict[int, float] = {}  # how long each index has paused last
        self._began: dict[Incarnation, float] = {}
        self._refusals: dict[int, str] = {}  # the error with which a newcomer of this index has ended last
        self._chief_lost: Failure | None = None

    # Losses.

    def bears(self, failure: Failure, running: Sequence[ProcessLike]) -> bool:
        """Returns whether the others can go on, and tells them that a worker is lost."""
        task = failure.process.task
        if task.type != WORKER:
            return False
        incarnation = life_of(task)
        self._host.tell_end(incarnation)
        left = [life_of(process.task) for process in running if process.task.type == WORKER]
        self._left = len(left)
        if self._member_record.is_chief(incarnation) and (
            self._member_record.is_leaving(incarnation) or not failure.process.has_left
        ):
            self._chief_lost = failure
        if self._is_done:
            return not self._member_record.is_chief(incarnation) or failure.process.has_left
        why = self._hindrance(failure, incarnation, left)
        if why and self._options.elastic is not None:
            self._terminal.say(f"{task.name} ended with {failure.how}. The job cannot go on: {why.rstrip('.')}.")
        return not why

    def _hindrance(self, failure: Failure, incarnation: Incarnation, left: Sequence[Incarnation]) -> str:
        """Returns why the others cannot go on without a worker, or ""."""
        elastic, code = self._options.elastic, failure.code
        leaves = self._member_record.is_leaving(incarnation)
        members = [each for each in left if self._member_record.was_member(each)]
        is_newcomer = bool(elastic and members) and not self._member_record.was_member(incarnation)
        error = error_line(failure.process.last_words) if code == ExitCode.FAILED and not is_newcomer else ""
        same_again, self._error = bool(error) and error == self._error, error or ""
        if is_newcomer:  # The others have not noticed it.
            return ""
        if not is_restartable(code):
            return f"a restart would only repeat {describe(code)}"
        if same_again:
            return f"the error is that of the worker before it ({error})"
        if code == ExitCode.PEER_LOST and not (elastic and members and self._member_record.is_left_out(incarnation)):
            return error_line(failure.process.last_words) or "the state of the training is lost"
        if elastic and code == ExitCode.RESUME and not leaves:
            return "all of them are to end and to be resumed"
        if not left or (elastic and self._member_record.world and not members):
            return "nobody is left who holds the state of the training" if left else "none is left"
        if self.revived < self._restarts or len(left) >= self._options.fewest_left or leaves:
            return ""
        return f"{len(left)} of at least {self._options.fewest_left} workers are left, and no restart"

    def succeed(self, failure: Failure) -> None:
        """Has a task started again, if a restart is left and the training is not done."""
        task, incarnation = failure.process.task, life_of(failure.process.task)
        if self._member_record.is_dismissed(incarnation):
            return
        if failure.process.is_guest:  # Whoever has started it may start it again.
            how = (
                f"has left ({reason})"
                if (reason := self._member_record.reason(incarnation))
                else f"ended with {failure.how}"
            )
            self._terminal.say(f"{task.name}, which had joined, {how}. The others go on.")
            return
        leaves, useless = (
            self._member_record.is_leaving(incarnation),
            self._age(incarnation) < _SECONDS_OF_A_USEFUL_LIFE,
        )
        could_not_join = self._is_failed_newcomer(incarnation)
        counts = (not leaves or useless) and not could_not_join
        hopeless = could_not_join and self._would_repeat(failure)
        if self._is_done or hopeless or (counts and self.revived >= self._restarts):
            self._tell_of_loss(failure, hopeless)
            return
        self.revived += counts
        pause = self._pause(incarnation) if could_not_join else 0.0
        again = f"It starts again in {pause:g} s" if pause else "It starts again"
        limited = counts and self._options.restarts is not None
        number = f" (restart {self.revived} of {self._restarts})" if limited else ""
        how = f"has left ({self._member_record.reason(incarnation)})" if leaves else f"ended with {failure.how}"
        self._terminal.say(f"{task.name} {how}. {again}{number}; the others go on.")
        successor = task.with_environment({**task.environment, LIFE: str(incarnation.number + 1)})
        self._waiting.append((self._clock() + pause, successor))

    def _is_failed_newcomer(self, incarnation: Incarnation) -> bool:
        """Returns whether a process has ended before it joined the others, who are at work."""
        return bool(self._member_record.world) and not self._member_record.was_member(incarnation)

    def _would_repeat(self, failure: Failure) -> bool:
        """Returns whether a newcomer has failed for a reason that another start would not change."""
        error = error_line(failure.process.last_words) if failure.code == ExitCode.FAILED else ""
        index = failure.process.task.index
        again = bool(error) and self._refusals.get(index) == error and not _OF_THE_NETWORK.search(error)
        self._refusals[index] = error
        return again or not is_restartable(failure.code)

    def _pause(self, incarnation: Incarnation) -> float:
        pause = min(2 * self._pauses.get(incarnation.index, _SHORTEST_PAUSE / 2), _LONGEST_PAUSE)
        self._pauses[incarnation.index] = pause
        return pause

    def _age(self, incarnation: Incarnation) -> float:
        return self._clock() - self._began.get(incarnation, -math.inf)

    def _tell_of_loss(self, failure: Failure, hopeless: bool) -> None:
        came_too_late = self._is_done and failure.code == ExitCode.PEER_LOST
        why = "another start would only repeat it" if hopeless else "no restart is left"
        why = "the training is done" if self._is_done else why
        how = "it came when the training was done" if came_too_late else failure.how
        goes_on = "The others go on without it" if self._left else "It does not start again"
        self._terminal.say(f"{failure.process.task.name} ended with {how}. {goes_on}: {why}.")
        if failure.code == ExitCode.FAILED or hopeless:
            words = shortened(failure.process.last_words) or "It printed nothing."
            self._terminal.show(f"Its log: {failure.process.log_path}\n\n{words}")

    # Successors.

    @property
    def due(self) -> float:
        """When the next task is to be started, by the clock; infinity for never."""
        return min((when for when, _ in self._waiting), default=math.inf)

    def start_due(self) -> list[ProcessLike]:
        """Starts the tasks that are due."""
        if self._is_done:
            self._waiting.clear()
        now = self._clock()
        due = [task for when, task in self._waiting if when <= now]
        self._waiting = [(when, task) for when, task in self._waiting if when > now]
        started = [self._start(task) for task in due]
        for process in started:
            self.started(process)
        return started

    def started(self, process: ProcessLike, host: str = "") -> None:
        """Notes that a process has been started."""
        if process.task.type == WORKER:
            incarnation = life_of(process.task)
            self._began[incarnation] = self._clock()
            self._member_record.start(incarnation, process.pid, host)

    # Joined workers.

    @property
    def awaits(self) -> bool:
        """Whether the job waits for the first workers, all of which are started elsewhere."""
        return self._options.workers == 0 and not self._member_record.incarnations

    def admits(self, joined_worker: JoinedWorkerLike, running: Sequence[ProcessLike]) -> bool:
        """Gives a worker that wants to join the index that it had before, or the next free one; or refuses it."""
        elastic = self._options.elastic
        if elastic is None or self._is_done:
            joined_worker.refuse("the training is done" if self._is_done else "the job is not elastic")
            return False
        taken = {task.index for task in (*(process.task for process in running), *(task for _, task in self._waiting))}
        free = [index for index in range(elastic.most) if index not in taken]
        if not free:
            joined_worker.refuse(f"it has as many workers as it may have (--elastic {elastic})")
            return False
        index = joined_worker.wanted if joined_worker.wanted in free else free[0]
        incarnation = Incarnation(index, self._member_record.incarnations.get(index, -1) + 1)
        began_with = self._options.workers or elastic.fewest
        joined_worker.admit(index, member_environment(elastic, self._host.address, incarnation, began_with))
        self._member_record.incarnations[index] = incarnation.number
        self._terminal.say(f"{joined_worker.task.name} joins from {joined_worker.host}.")
        return True

    # News.

    def hears(self, news: MemberNews | FoundSilent, running: Sequence[ProcessLike]) -> None:
        """Notes what a worker tells: a new world, that it leaves, or that another one gives no sign of life."""
        if isinstance(news, FoundSilent):
            for process in running:
                if process.task.name == news.task and life_of(process.task).number == news.incarnation:
                    self._member_record.is_silent(life_of(process.task))
                    self._terminal.say(f"{news.task} shows no sign of life any more and is killed.")
                    process.kill()  # So that it is started again: it may only be stopped.
        elif news.started_at:
            self.started(news.process, news.started_at)
        elif news.leaving:
            self._member_record.leave(life_of(news.process.task), news.leaving)
        else:
            began = not self._member_record.world
            incarnations = [Incarnation(index, number) for index, number in news.incarnations]
            for process in running:
                if process.has_left and process.task.type == WORKER:
                    self._member_record.is_at_its_end(life_of(process.task))
            why = self._member_record.enter(news.world, incarnations)
            if why:
                self._chief_lost = None
                self._pauses.clear()
            if why and not began:
                names = ", ".join(str(incarnation.index) for incarnation in incarnations)
                self._terminal.say(f"{len(incarnations)} worker(s) go on ({names}): {why}.")

    def ended(self, process: ProcessLike, code: int, asked: bool) -> int:
        """Notes that a process has ended; see `LossPolicy`."""
        if process.task.type != WORKER:
            return code
        incarnation = life_of(process.task)
        if code == ExitCode.OK and self._member_record.was_member(incarnation) and not process.has_left:
            code, process.last_words = ExitCode.FAILED, f"replicax: {process.task.name} {_IN_THE_MIDDLE}"
        self._member_record.end(incarnation, process, code, asked)
        return code

    def done(self, process: ProcessLike, running: Sequence[ProcessLike]) -> None:
        """Notes that a process has ended with 0, and ends newcomers for whom nobody is left."""
        if process.task.type != WORKER:
            return
        if self._options.elastic is None:
            self._is_done |= process.task.index == 0
            return
        known, incarnation = self._member_record.world, life_of(process.task)
        self._host.tell_end(incarnation)
        self._is_done |= not known or self._member_record.was_member(incarnation)
        workers = [each for each in running if each.task.type == WORKER]
        if known and self._is_done and not any(self._member_record.was_member(life_of(each.task)) for each in workers):
            for each in workers:
                self._terminal.say(f"{each.task.name} is ended: it came when the training was done.")
                self._member_record.dismiss(life_of(each.task))
                if isinstance(each, JoinedWorker):
                    each.refuse("the training is done")
                else:
                    each.kill()

    def ends_all(self) -> None:
        """Tells all workers that the whole job ends: nobody leaves alone."""
        self._host.tell_ending()

    def verdict(self) -> Failure | None:
        """Returns why the attempt has failed although all processes that are left have ended with 0."""
        if self._chief_lost is not None and self._options.elastic is not None:
            name = self._chief_lost.process.task.name
            self._terminal.say(f"{name} was the chief at the end and was lost: its last lines may not have run.")
        return self._chief_lost if self._options.elastic is not None else None


def life_of(task: PlannedTask) -> Incarnation:
    """Returns which run of which worker a task is."""
    return Incarnation(task.index, int(task.environment[LIFE]))
