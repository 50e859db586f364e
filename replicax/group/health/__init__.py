"""No silent hangs: workers watch each other, and when the job stands still, all end with the same report.

Collectives have no timeout in a training step: if one worker does not come, the others wait forever. So each worker
runs two threads besides its main thread: a health server, which answers questions, and a monitor, which asks them.

A worked example. Three workers train, and `worker:1` hangs in a callback: its script waits for a file that never
comes. `stall_timeout` is 300 seconds.

1. *Start.* When the strategy is made, `starting.start` connects the workers. Each tells the others the address of its
   `server.HealthServer`, and `monitor.install` starts its monitor.
2. *What each worker does.* The main threads set flags as they go (`runtime.activity.now`; `runtime.calls.Call` counts
   the programs). `worker:1` is in phase `callback` after step 41. The others have started step 42, whose sum needs
   `worker:1`: their phase is `step`, and they wait. `traffic` sees that no bytes flow, so they are not just slow.
3. *Who asks.* Once a second the monitor's `observer.Observer` asks all peers for their `status.Status`, through
   `question_threads.QuestionThreads` and `client.Client`. The answer of `worker:1` arrives at once, since its server
   runs in another thread. `peers.History` keeps it.
4. *Who notices.* After 300 seconds `diagnosis.diagnose`, a pure function of what is known of all workers, returns
   `ABSENT`: `worker:1` is alive, but does not come to where others wait for it. All monitors reach this verdict; the
   worker with the lowest index that is not to blame, `worker:0`, raises the alarm.
5. *Who reports.* `worker:0` asks all for their Python stacks (`reporting.gather`), and `reporting.alarm_report` writes
   the report: what each worker is doing, and the line of the callback where `worker:1` waits. It goes to
   `REPLICAX_LOG_DIR`, and to the launcher (`launcher_messages.tell_launcher`) or stderr.
6. *The end.* `worker:0` posts the report to the others as `/alarm`. Each writes it too. `alarm.Alarm` interrupts the
   sum that the script waits in, so that the script raises `WorkerLostError`; then the process ends with exit code 70
   (`STALLED`), so that whoever started the job can restart it. `worker:1` itself waits for no other, and ends at once.

Had `worker:1` died, nobody would listen at its port, and the diagnosis would be `DEAD` after two questions. Had it run
another program, `programs.ProgramComparison` would notice before the first call, and `runtime.call_order.Order` later.
"""

from replicax.contracts.shown import Shown
from replicax.group.health.monitor import running
from replicax.group.health.starting import (
    DEFAULT_STALL_TIMEOUT_S as DEFAULT_STALL_TIMEOUT_S,
    stall_timeout_from as stall_timeout_from,
    start as start,
)
from replicax.group.health.status import status_of

__all__ = ["report"]  # This is what users call; the package itself uses all the names above.


def report() -> Shown:
    """Returns what every worker of the job is doing now, one line each, for debugging.

    Any thread of any worker may call it at any time. If a worker does not answer, its line shows its last answer.
    Without a cluster there is one line, for this process.

    Example:
        >>> "last completed step" in report()
        True
    """
    monitor = running()
    return Shown(f"  worker:0   {status_of().describe()}" if monitor is None else monitor.report())
