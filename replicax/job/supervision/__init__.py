"""Which failure of a job came first, whether the others bear it, how the rest is ended, and whether all starts again.

The problem: exits, messages, signals and deadlines come in any order, two of them at once. The first failure must be
found among those that follow from it; nobody may be left running, or ended who could have gone on.

The way is that of `parameter_server/scheduling`: *observe, decide, act*. All that is known of an attempt is one
immutable value, the `JobState`, and `next_state(state, event)` returns the next state and the actions. It is pure, so
that random histories by the thousand need no process and no clock.

1. `run_job.py` starts the tasks of an attempt, waits for events (`processes/events.py`), and carries out the actions
   (`actions.py`).
2. `machine.py` decides, from the state (`state.py`): who has failed (`failure.py`), who is asked to end, who is killed.
3. Three policies say what the user has chosen. `loss_policy.py`: the loss of one task ends all. `elastic_policy.py`:
   the others go on, and a lost one starts again; what is known of these workers is a value, too (`members.py`).
   `restart_policy.py`: whether there is another attempt.

An elastic job of two workers loses one:

    >>> from replicax.group.membership.launcher_news import ElasticRange
    >>> from replicax.job.processes.events import MemberNews, Started, TaskRun
    >>> from replicax.job.supervision.elastic_policy import ElasticPolicy
    >>> from replicax.job.supervision.machine import next_state
    >>> from replicax.job.supervision.state import Ended, JobState
    >>> state = JobState(workers=2, losses=ElasticPolicy(restarts=1, limits=ElasticRange(1, 2)))
    >>> first, second = TaskRun("worker", 0), TaskRun("worker", 1)
    >>> for task, pid in ((first, 7), (second, 8)):
    ...     state, _ = next_state(state, Started(task, pid))
    >>> state, _ = next_state(state, MemberNews(first, world=1, incarnations=((0, 0), (1, 0))))
    >>> state, actions = next_state(state, Ended(second, time=60.0, code=137))
    >>> [type(action).__name__ for action in actions]
    ['Log', 'TellEnd', 'Say', 'StartAgain']
    >>> actions[2].text
    'worker 1 ended with exit code 137: ended by SIGKILL. It starts again (restart 1 of 1); the others go on.'
    >>> actions[3].task
    TaskRun(type='worker', index=1, life=1)
"""
