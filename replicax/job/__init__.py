"""Jobs of processes: starting, supervising and ending them, here and on other machines.

The problem: the processes of a job depend on each other. If one fails, the others wait in collectives that nobody
interrupts; if the launcher is killed, they stay behind and hold devices and ports; and the first error must be found
among the many that follow from it. `subprocess.Popen` in a loop does none of that.

`replicax run --workers 2 script.py`, through the files:

1. `options.py` checks what was asked for; `plan.py` makes of it the tasks of an attempt, each with its environment.
   Both start nothing.
2. `launching/local_job.py` starts the tasks of an attempt as processes of this machine (`processes/processes.py`); the
   first code in each is `processes/child.py`, which ties it to the launcher. `processes/reaper.py` ends all of them if
   the launcher is killed by SIGKILL.
3. Output comes line by line (`processes/output.py`, `processes/terminal.py`). A process tells its launcher by a pipe
   how it fails, and whom it blames; all that happens is an event (`processes/events.py`).
4. `supervision/machine.py` decides what follows from an event: which task failed first, whether the others can bear it
   (`supervision/elastic_policy.py`), and how the rest is ended. `supervision/run_job.py` carries that out.
5. `supervision/restart_policy.py` decides by the exit codes (`errors/exit_codes.py`) whether there is another attempt.

On other machines, `elsewhere/`: an actor of Ray is the agent of each worker (`agent.py`); it starts the same processes,
and sends the same events to `remote_process.py`, so steps 4 and 5 do not know the difference. The agents of a fixed job
have their places all at once; those of an elastic one (`worker_actors.AgentPool`) have them one by one, when a machine
has room. `templates/` writes manifests for schedulers, which start processes themselves.

The mistakes that it guards against: a process that outlives its job; a second failure that hides the first; a restart
that only repeats an error; a worker that ends with 0 while others still need it; strangers at a port.
"""
