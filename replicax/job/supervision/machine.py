"""The decisions about one attempt at a job: `next_state(state, event) -> (state, actions)`.

States, events and actions are values. Nothing here starts, waits, or looks at a clock; `run_job.py` carries out what is
decided here, and tells what came of it as further events.

```text
           a task fails                others notice, or not              the grace period
  running ──────────────► failures ─────────────────────────► SIGTERM ────────────────────► SIGKILL ──► over
     │                (first_failure)     deadlines.ask                    deadlines.kill
     ├── the loss of one is tolerated: it starts again, or the others go on ──► running
     └── the launcher gets a signal, and passes it on ──► deadlines.kill
```

The first failure in time is that of the attempt, or that of the task which it blames. Tasks that end after our own
signals are not to blame.
"""

from __future__ import annotations

import dataclasses
import math
import signal
from typing import Any

from replicax.contracts.group import Incarnation
from replicax.errors.exit_codes import ExitCode, from_signal
from replicax.job.processes import events
from replicax.job.processes.events import ScriptEnded, TaskRun
from replicax.job.processes.task import WORKER, WORKERS
from replicax.job.supervision import actions
from replicax.job.supervision.actions import Action, Kill, Log, Say, Send
from replicax.job.supervision.failure import Failure
from replicax.job.supervision.members import TOO_LATE
from replicax.job.supervision.state import Ended, Event, JobState, Task, Tick

#: The signals that tell the launcher to end the job.
ENDING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
#: The exit codes of tasks that the launcher ends: by SIGTERM, then by SIGKILL, which not every system has.
_OURS = (from_signal(signal.SIGTERM), from_signal(9))
_SIGNALED = 128  # An exit code above it stands for a signal.
_LOSSES = (ExitCode.STALLED, ExitCode.PEER_LOST)


def next_state(state: JobState, event: Event) -> tuple[JobState, tuple[Action, ...]]:
    """Returns the state after an event at the time `state.now`, and what is to be done.

    Example:
        >>> from replicax.job.processes.events import Started, TaskRun
        >>> state = JobState(workers=2)
        >>> first, second = TaskRun("worker", 0), TaskRun("worker", 1)
        >>> for task in (first, second):
        ...     state, _ = next_state(state, Started(task, pid=7))
        >>> state, actions = next_state(state.at(10.0), Ended(second, time=10.0, code=137))
        >>> actions, round(state.due, 1)
        ((), 10.1)
        >>> state, actions = next_state(state.at(10.1), Tick())
        >>> actions[0].text
        'worker 1 failed (exit code 137: ended by SIGKILL); ending worker 0 within 5 s.'
        >>> actions[-1] == Send(first, signal.SIGTERM)
        True
    """
    transition = _Transition(state)
    transition.take(event)
    if transition.state.is_over:
        transition.conclude()
    else:
        transition.go_on()
    return transition.state, tuple(transition.actions)


class _Transition:
    """The working copy of one transition: the state and the actions so far."""

    def __init__(self, state: JobState):
        self.state = state
        self.actions: list[Action] = []

    def take(self, event: Event) -> None:
        state = self.state
        match event:
            case events.Started():
                self._started(event)
            case events.SignalReceived(number):
                self._signaled(number)
            case events.FoundSilent(name, life):
                self._found_silent(name, life)
            case Tick():
                pass
            case _ if event.process not in state.tasks:
                pass  # Its loss was tolerated.
            case Ended():
                self._ended(event)
            case events.WaitingForOthers(run, size, watches):
                self._note(run, meets=size, watches=watches)
                self._find_missed()
            case events.ClusterLeft(run):
                self._note(run, has_left=True)
            case events.CallReturned(run, threads):
                self._note(run, returned=threads)
                self._set_deadline(tell=state.now + state.patience.end)
            case ScriptEnded() if not state.is_tolerant:  # Otherwise it is seen to when its process has ended.
                self._script_failed(event)
            case events.MemberNews(run) if state.is_tolerant and not state.tasks[run].is_over:
                self._member_told(event)

    def go_on(self) -> None:
        now, deadlines = self.state.now, self.state.deadlines
        if now >= deadlines.miss:
            self._miss_early_ends(certain=False)
        if now >= self.state.deadlines.ask:
            self._ask_to_end()
        if now >= self.state.deadlines.kill:
            names = ", ".join(run.name for run in self.state.running)
            if self.state.signal in ENDING:
                self._say(f"Killing {names}: not ended {self.state.grace.all:g} s after the signal.")
            self._kill_all()
        if now >= deadlines.tell:
            self._tell_who_stays()
        if self.state.is_tolerant:
            self._start_due()

    def conclude(self) -> None:
        """Decides, when all processes have ended, whether the job did although none of its last ones has failed."""
        lost = self.state.members.chief_lost
        if lost is not None and self.state.is_tolerant and self.state.losses.is_elastic:
            self._say(f"{lost.task.name} was the chief at the end and was lost: its last lines may not have run.")
            self._set(failures=(lost,))

    # Starts and ends.

    def _started(self, event: events.Started[TaskRun]) -> None:
        run, waited = event.process, event.process in self.state.waiting_workers
        if run in self.state.tasks and not waited:
            return  # It is known to run: a process elsewhere may say so twice.
        self._note(run, log_path=event.log_path, waits=event.waits)
        if run.type == WORKER and self.state.is_tolerant and not event.waits:
            if waited and self.state.members.world:
                self._say(f"{run.name} starts on {event.host}.")
            incarnation = run.incarnation
            members = self.state.members.with_worker(incarnation, pid=event.pid, began=self.state.now)
            self._set(members=members)
            self.actions.append(Log("start", (incarnation, event.pid, event.host)))

    def _ended(self, event: Ended) -> None:
        run = event.process
        self._note(run, is_over=True, has_left=event.has_left, meets=event.meets)
        if self.state.tasks[run].waits and not self.state.is_tolerant:
            return  # It has never run.
        code, words = self._counted(event)
        told = event.told
        log_path = self.state.tasks[run].log_path
        failure = Failure(run, code, event.time, run, words, told is not None, log_path, event.is_lost)
        if code != 0 and self.state.is_tolerant and self._tolerates(failure):
            self._succeed(failure)
            self._set(tasks={each: task for each, task in self.state.tasks.items() if each != run})
            return
        if told is not None:  # The end of a process may be noticed before its message.
            self._script_failed(told)
        if code != 0:
            self._failed(failure)
            known = [each._replace(words=words) if each.task == run else each for each in self.state.failures]
            self._set(failures=tuple(known))
            return
        self._note(run, done_at=event.time)
        self._member_done(run)
        self._find_missed()
        if not self.state.failures and not self.state.trains:
            for each in self.state.running:  # Only an evaluator is left, which ends after the last checkpoint.
                self._say(f"The training is done; waiting for {each.name}. Ctrl-C ends it.")

    # Failures.

    def _script_failed(self, event: ScriptEnded[TaskRun]) -> None:
        run = event.process
        names = {each.name: each for each in self.state.tasks}
        blamed = [names[name] for name in event.blames if name in names]
        culprit = run if not blamed or run in blamed else blamed[0]
        log_path = self.state.tasks[culprit].log_path
        self._failed(Failure(run, event.code, event.time, culprit, "", True, log_path, is_blamed=run in blamed))

    def _failed(self, failure: Failure) -> None:
        self._miss_early_ends(certain=True)
        self._fail(failure)

    def _fail(self, failure: Failure) -> None:
        state = self.state
        if any(failure.task == other.task for other in state.failures):
            return  # The failure of its script is known, and now its process has ended.
        # The end of a process counts from a moment before it, which may be before our signal.
        ended_by_us = math.isfinite(state.blamed_until) and failure.code in _OURS and not failure.told
        if failure.time > state.blamed_until or ended_by_us:
            return
        self._set(failures=(*state.failures, failure))
        if not state.signal:  # Otherwise they have got a signal already.
            is_resumption = failure.code == ExitCode.RESUME
            delay = state.patience.stall if is_resumption else _seconds_to_settle(self.state)
            self._set_deadline(ask=min(state.deadlines.ask, state.now + delay))

    def _find_missed(self) -> None:
        """Finds workers that ended with 0 although others need them: they left early or never came."""
        state = self.state
        waiting = ", ".join(run.name for run in state.running if 0 < state.tasks[run].meets == state.workers)
        known = {failure.task for failure in state.missed}
        for run, task in [] if state.signal else list(state.tasks.items()):
            if task.done_at is None or run.type not in WORKERS or run in known:
                continue
            if task.meets and not task.has_left:
                why = "in the middle of the job, by os._exit or the like and not at the end of its script"
            elif waiting and not task.meets:
                why = f"before it came to where {waiting} waited for it: it made no strategy"
            else:
                continue
            words = f"replicax: the process of {run.name} ended with exit code 0 {why}."
            missed = Failure(run, ExitCode.PEER_LOST, task.done_at, run, words, log_path=task.log_path)
            self._set(missed=(*self.state.missed, missed))
            seconds = state.patience.end if task.meets else 0.0
            self._set_deadline(miss=min(self.state.deadlines.miss, state.now + seconds))

    def _miss_early_ends(self, certain: bool) -> None:
        """Counts the end of a worker with 0 as a failure, if others that need it fail or go on."""
        self._set_deadline(miss=math.inf)
        for failure in self.state.missed if certain or self.state.trains else ():
            self._fail(failure)

    # The end of all.

    def _signaled(self, number: int) -> None:
        state, name = self.state, signal.Signals(number).name
        if state.signal and number == signal.SIGINT:
            self._say("Killing all tasks.")
            self._kill_all()
            return
        more = " Ctrl-C again kills them." if number == signal.SIGINT else ""
        self._say(f"{name} is passed on to all tasks.{more}")
        self._set(signal=number)
        self._set_deadline(ask=math.inf)  # No task gets a second signal.
        if number in ENDING:
            self._set_deadline(kill=min(state.deadlines.kill, state.now + state.grace.all))
            self._tell_ending()
        self.actions += [Send(run, number) for run in state.running]

    def _ask_to_end(self) -> None:
        """Sends SIGTERM to the tasks that have not failed. The others are ending, or wait for these at their exit."""
        state, first = self.state, self.state.first_failure
        assert first is not None  # Only a failure sets the deadline.
        self._set(blamed_until=state.now)
        self._set_deadline(ask=math.inf, kill=state.now + state.grace.survivors)
        failed = {failure.task for failure in state.failures}
        others = [run for run in state.running if run not in failed]
        if others:
            names = ", ".join(run.name for run in others)
            self._say(f"{first.culprit.name} failed ({first.how}); ending {names} within {state.grace.survivors:g} s.")
        self._tell_ending()
        self.actions += [Send(run, signal.SIGTERM) for run in others]

    def _kill_all(self) -> None:
        self._set_deadline(kill=math.inf)
        self._set(killed=True, blamed_until=min(self.state.blamed_until, self.state.now))
        self.actions += [Kill(run) for run in self.state.running]

    def _tell_ending(self) -> None:
        if self.state.losses.tolerates:
            self.actions.append(actions.TellEnding())

    def _tell_who_stays(self) -> None:
        """Says which processes run on although all calls have returned: those with others to wait for may."""
        self._set_deadline(tell=math.inf)
        staying = [(run, self.state.tasks[run].returned) for run in self.state.running]
        for run, threads in staying if all(threads is not None for _, threads in staying) else ():
            names = ", ".join(threads or ())
            why = f"it waits for its threads that are no daemons ({names})" if names else "something keeps it alive"
            self._say(f"Waiting for the process of {run.name}: its function has returned, but {why}. Ctrl-C ends it.")

    # Workers that come and go.

    def _counted(self, event: Ended) -> tuple[int, str]:
        """Notes the end of a worker; returns the exit code that counts, and its last words."""
        run, code, words, members = event.process, event.code, event.words, self.state.members
        if run.type != WORKER or not self.state.losses.tolerates:
            return code, words
        if code == ExitCode.OK and members[run.incarnation].was_member and not event.has_left:
            how = "ended with exit code 0 in the middle of the job, by os._exit or the like."
            code, words = ExitCode.FAILED, f"replicax: {run.name} {how}"
        members = members.ended(run.incarnation, code, words, not self.state.is_tolerant, event.is_lost)
        self._set(members=members)
        record = members[run.incarnation]
        if not self.state.tasks[run].waits:
            self.actions.append(Log("end", (run.incarnation, record.pid, code, record.end)))
        return code, words

    def _tolerates(self, failure: Failure) -> bool:
        """Decides whether the others can go on, and tells them that a worker is lost."""
        run, losses = failure.task, self.state.losses
        if run.type != WORKER:
            return False
        incarnation, has_left = run.incarnation, self.state.tasks[run].has_left
        self.actions.append(actions.TellEnd(incarnation))
        members = self.state.members
        is_chief = members.is_chief(incarnation)
        if is_chief and (members[incarnation].is_leaving or not has_left):
            members = dataclasses.replace(members, chief_lost=failure)
        self._set(members=members)
        if members.is_done:
            return not is_chief or has_left
        left = [each.incarnation for each in self.state.running_workers]
        why = losses.hindrance(members, failure, left)
        self._set(members=dataclasses.replace(members, error=losses.error_of(members, failure, left)))
        if why and losses.is_elastic:
            self._say(f"{run.name} ended with {failure.how}. The job cannot go on: {why.rstrip('.')}.")
        return not why

    def _succeed(self, failure: Failure) -> None:
        """Has a lost worker started again, or says why not."""
        run, members, losses = failure.task, self.state.members, self.state.losses
        reason = members[run.incarnation].reason
        if reason == TOO_LATE:
            return
        found = losses.succession(members, failure, self.state.now)
        if found.could_not_join:
            members = dataclasses.replace(members, refusals={**members.refusals, run.index: failure.error})
        if not found.again:
            self._set(members=members)
            self._tell_of_loss(failure, found.hopeless)
            return
        if found.could_not_join:
            members = dataclasses.replace(members, pauses={**members.pauses, run.index: found.pause})
        waiting = (self.state.now + found.pause, dataclasses.replace(run, life=run.life + 1))
        revived = members.revived + found.counts
        self._set(members=dataclasses.replace(members, revived=revived, waiting=(*members.waiting, waiting)))
        how = f"has left ({reason})" if members[run.incarnation].is_leaving else f"ended with {failure.how}"
        again = f"It starts again in {found.pause:g} s" if found.pause else "It starts again"
        again += " when there is room" if failure.is_lost else ""
        number = f" (restart {revived} of {losses.restarts})" if found.counts and losses.is_limited else ""
        self._say(f"{run.name} {how}. {again}{number}; the others go on.")

    def _tell_of_loss(self, failure: Failure, hopeless: bool) -> None:
        is_done = self.state.members.is_done
        came_too_late = is_done and failure.code == ExitCode.PEER_LOST
        why = "another start would only repeat it" if hopeless else "no restart is left"
        why = "the training is done" if is_done else why
        how = "it came when the training was done" if came_too_late else failure.how
        goes_on = "The others go on without it" if self.state.running_workers else "It does not start again"
        self._say(f"{failure.task.name} ended with {how}. {goes_on}: {why}.")
        if failure.code == ExitCode.FAILED or hopeless:
            self.actions.append(actions.ShowWords(failure.log_path, failure.words))

    def _start_due(self) -> None:
        """Starts the successors of tasks that have ended, when it is time."""
        now, members = self.state.now, self.state.members
        if not members.waiting:
            return
        waiting = () if members.is_done else members.waiting
        self.actions += [actions.StartAgain(run) for when, run in waiting if when <= now]
        left = tuple((when, run) for when, run in waiting if when > now)
        self._set(members=dataclasses.replace(members, waiting=left))

    def _found_silent(self, name: str, life: int) -> None:
        for run in self.state.running if self.state.is_tolerant else ():
            if run.name == name and run.life == life:
                self._set(members=self.state.members.silent(run.incarnation))
                self._say(f"{name} shows no sign of life any more and is killed.")
                self.actions.append(Kill(run))  # So that it is started again: it may only be stopped.

    def _member_told(self, event: events.MemberNews[TaskRun]) -> None:
        members, incarnation = self.state.members, event.process.incarnation
        if event.leaving:
            self._set(members=members.with_worker(incarnation, reason=event.leaving))
            self.actions.append(Log("leave", (incarnation, event.leaving)))
            return
        incarnations = tuple(Incarnation(index, number) for index, number in event.incarnations)
        at_their_end = [run.incarnation for run in self.state.running_workers if self.state.tasks[run].has_left]
        after, why = members.at_their_end(at_their_end).entered(event.world, incarnations)
        self._set(members=after)
        if why:
            self.actions.append(Log("world", (event.world, incarnations, why)))
        if why and members.world:
            names = ", ".join(str(each.index) for each in incarnations)
            self._say(f"{len(incarnations)} worker(s) go on ({names}): {why}.")

    def _member_done(self, run: TaskRun) -> None:
        """Notes that a worker has ended with 0, and ends newcomers for whom nobody is left."""
        losses, members = self.state.losses, self.state.members
        if run.type != WORKER or not losses.tolerates:
            return
        if losses.is_elastic:
            self.actions.append(actions.TellEnd(run.incarnation))
        members = dataclasses.replace(members, is_done=losses.is_done(members, run.incarnation))
        for each in self.state.waiting_workers if members.is_done else ():
            members = members.with_worker(each.incarnation, reason=TOO_LATE)
            self.actions.append(Kill(each))
        workers = self.state.running_workers
        if members.is_done and members.world and not members.are_any(each.incarnation for each in workers):
            for each in workers:
                self._say(f"{each.name} is ended: it came when the training was done.")
                members = members.with_worker(each.incarnation, reason=TOO_LATE)
                self.actions.append(Kill(each))
        self._set(members=members)

    # Changes of the state.

    def _say(self, text: str) -> None:
        self.actions.append(Say(text))

    def _set(self, **parts: Any) -> None:
        self.state = self.state._replace(**parts)

    def _set_deadline(self, **deadlines: float) -> None:
        self._set(deadlines=self.state.deadlines._replace(**deadlines))

    def _note(self, run: TaskRun, **known: Any) -> None:
        task = self.state.tasks.get(run, Task())._replace(**known)
        self._set(tasks={**self.state.tasks, run: task})


def _seconds_to_settle(state: JobState) -> float:
    """Returns how long to wait for those that notice the loss of a worker themselves, so that no signal ends them."""
    is_loss = all(each.code > _SIGNALED or each.code in _LOSSES for each in state.failures)
    known = {each for failure in state.failures for each in (failure.task, failure.culprit)}
    notice = any(state.tasks[run].watches and run not in known for run in state.running)
    return state.patience.silence if is_loss and notice else state.patience.again
