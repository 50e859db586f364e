"""Which worker runs which step when, and what happens when workers or servers are lost.

The problem: steps are scheduled by one process and run by others, which may die or hang at any time, two of them at
once, while they start, compute, or are replaced. No step may be lost, no update may be applied twice, whoever waits
must hear of errors, and nobody may wait forever.

The way: *observe, decide, act*. All that is known is one immutable value, the `SchedulerState`. Whatever happens is an
event, and one pure function decides what follows from it: `next_state(state, event)` returns the next state and the
actions. A thread carries the actions out, and what comes of them are further events. So faults can be tried by the
thousand without processes, threads or clocks.

One step, through the files:

1. `closures.py`: a call of a function becomes a `Closure`, with the program that workers have, or get now.
2. `scheduler.py`: `Scheduler.add` makes it the event `Scheduled` (`events.py`).
3. `machine.py`: `next_state` puts it into the `ledger.py`, which knows who is free; the action is `SendStep`
   (`actions.py`).
4. `runner.py`: the thread carries that out; `actor_group.py` sends the actor the program's id, the arguments, and
   how new the variables must be.
5. The worker's answer is the event `StepAnswered`, and `next_state` decides for `SetResult`: the `RemoteValue`
   (`remote_values.py`) that the user holds gets its result.

If the worker is killed meanwhile, Ray says so, or a ping has no answer and `watch.py` finds that the worker hangs:

    >>> from replicax.parameter_server.scheduling.actions import SendStep, StartWorker
    >>> from replicax.parameter_server.scheduling.events import ActorGone, PingAnswered, Scheduled, Tick, WorkerStarted
    >>> from replicax.parameter_server.scheduling.ledger import Ledger
    >>> from replicax.parameter_server.scheduling.machine import next_state
    >>> from replicax.parameter_server.scheduling.state import SchedulerState
    >>> from replicax.parameter_server.scheduling.watch import ActorId
    >>> from replicax.parameter_server.actors.messages import Report
    >>> from replicax.ray_cluster.deadline import PATIENCE
    >>> state = SchedulerState.of(Ledger.of(workers=2), servers=0, patience=PATIENCE)
    >>> state, actions = next_state(state, Tick(1.0))
    >>> [str(action.actor) for action in actions if isinstance(action, StartWorker)]
    ['worker:0', 'worker:1']
    >>> first, second = ActorId("worker", 0), ActorId("worker", 1)
    >>> for actor in (first, second):  # Both come up.
    ...     state, _ = next_state(state, WorkerStarted(actor, life=1, goal=0))
    ...     state, _ = next_state(state, PingAnswered(actor, 1, Report("node", 7, "cpu", set_up=0)))
    >>> state, actions = next_state(state, Scheduled("a step"))
    >>> actions[-1].attempt.worker
    0
    >>> state, actions = next_state(state, ActorGone(first, 1, "It was killed."))
    >>> [action.attempt.worker for action in actions if isinstance(action, SendStep)]  # The other one runs it.
    [1]
    >>> next_state(state, Tick(2.0))[1][0]  # And the first one is started again.
    StartWorker(actor=ActorId(job='worker', index=0), life=2)

A lost server takes variables with it. Then the state drains (nothing new begins), and `recovery.py` tries to replace
the server and to restore the newest checkpoint; whether it tries again is decided in `machine.py`. `worker_actors.py`
and `server_actors.py` hold the actors' handles. For those who look on, `stats.py` counts, and `live.py` shows a table.
"""
