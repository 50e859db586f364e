"""The group: the processes of a job while it runs, which of them are lost, and how the others go on.

The problem: a collective has no time limit. If one process does not come, all others wait in C++ without end, where no
exception reaches them; and a process that is slow looks like one that is lost. Two lines of `try` around a step cannot
tell these cases apart, cannot leave a collective, and cannot make all others leave it at the same step.

Whoever does something together with others asks `contracts.group.current_group()`, and need not know of which kind the
job is: a fixed one (`fixed_group.py`) is an elastic one whose members may not change. `stop_vote.py` is for both. Each
kind has a sub-room:

- *Fixed* jobs (`health/`): all processes stay, or the job ends. Each one runs a health server and a monitor; whoever is
  dead, hung or somewhere else is named in a report on all of them, and all end with an exit code that says what a
  restart would do. `health/__init__.py` follows one hang through the files.
- *Elastic* jobs and islands (`membership/`): a lost process is left out and may come again. The others go on in the
  same processes.

The loss of a worker in an elastic job, through the files of `membership/`:

1. Each process writes a heartbeat into the job's store (`heartbeat.py`, `job_store.py`), which a process of its own
   keeps (`store_process.py`, `store_main.py`). The launcher writes there who has ended.
2. In each survivor a thread reads the store (`interrupter.py`). It finds that a member is over, or silent, calls for a
   new quorum, and shuts down the connections of the collective, in which the thread that trains waits; so that raises.
   Where a message was sent in part, the wait is broken off by a signal (`interrupted_wait.py`).
3. `elastic_group.py`, `ElasticGroup.attempt` takes the error for a loss, and lets the survivors meet.
4. `elastic_meeting.py`: each process computes from the store what the next quorum is (`quorum.py`: pure functions, no
   clock) and proposes it. The store keeps the first proposal, so nobody leads, and two halves cannot both go on.
5. The members of the quorum make new connections. One that has completed the call in which others were interrupted
   sends its outcome (`Outcomes`); a newcomer gets all the state (`state_transfer.py`).
6. A new *world* begins: `jax.devices()` are those of the survivors. The call is made again with the same rows, split
   anew (`../renewal.py`).

The mistakes that it guards against: a slow process that is taken for a lost one (the phases of `runtime/activity.py`);
two halves of a split network that both train on; a process that wakes after it was left out; a result that some have
and others do not; a program that differs between processes (`health/programs.py`, `runtime/call_order.py`).
"""
