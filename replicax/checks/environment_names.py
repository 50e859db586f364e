"""The names of the environment variables that replicax reads and sets: this list is the only one.

Scripts that run before the package can be imported (`job/processes/child.py`) repeat a name.
"""

# Set by users.
#: The address of this machine that the others reach.
HOST = "REPLICAX_HOST"
#: The secret of a job: whoever knows it belongs to it.
TOKEN = "REPLICAX_TOKEN"
#: Seconds without progress after which a job ends.
STALL_TIMEOUT = "REPLICAX_STALL_TIMEOUT"
#: Seconds after which a slow phase is reported.
SLOW_TIMEOUT = "REPLICAX_SLOW_TIMEOUT"
#: Seconds that a worker waits for the others at its end.
END_TIMEOUT = "REPLICAX_END_TIMEOUT"
#: How many bytes of freed memory a process keeps.
KEEP_MEMORY = "REPLICAX_KEEP_MEMORY"
#: "full" for tracebacks with all frames.
TRACEBACK = "REPLICAX_TRACEBACK"
#: Set if a cluster may do without a token.
INSECURE = "REPLICAX_INSECURE"
#: The folder for logs of the testing package's workers.
TEST_LOGS = "REPLICAX_TEST_LOGS"
#: The folder for logs and reports.
LOG_DIR = "REPLICAX_LOG_DIR"
#: "0" if a job keeps no ledger; the launcher tells each process where its own is.
LEDGER = "REPLICAX_LEDGER"
#: How many workers a local cluster has.
PS_WORKERS = "REPLICAX_PS_WORKERS"
#: How many servers.
PS_SERVERS = "REPLICAX_PS_SERVERS"

# The place of a process among the others.
#: The address of process 0.
COORDINATOR = "REPLICAX_COORDINATOR"
#: How many processes the job has.
NUM_PROCESSES = "REPLICAX_NUM_PROCESSES"
#: The index of this one.
PROCESS_ID = "REPLICAX_PROCESS_ID"
#: How many of them this machine has.
LOCAL_NUM_PROCESSES = "REPLICAX_LOCAL_NUM_PROCESSES"
#: The index of this one among them.
LOCAL_PROCESS_ID = "REPLICAX_LOCAL_PROCESS_ID"
#: Which attempt of the job this is, from 0.
ATTEMPT = "REPLICAX_ATTEMPT"
#: Which incarnation of its task a process is.
LIFE = "REPLICAX_LIFE"
#: The process id of the launcher.
LAUNCHER_PID = "REPLICAX_LAUNCHER_PID"
#: The pipe on which a process tells its launcher.
NEWS = "REPLICAX_NEWS"
#: Set in the workers of a client elsewhere.
CLIENT = "REPLICAX_CLIENT"
#: The name of a job of KubeRay.
JOB = "REPLICAX_JOB"
#: The folder of the Ray node that a process belongs to.
RAY_FOLDER = "REPLICAX_RAY_FOLDER"

# Elastic jobs.
#: The address of an elastic job's store.
MEETING = "REPLICAX_MEETING"
#: With how few workers an elastic job goes on, and how many it may have ("2:8").
ELASTIC = "REPLICAX_ELASTIC"
#: No more used: the option `--join` had it as its default, and says what to do instead.
JOIN = "REPLICAX_JOIN"
#: The folder for snapshots in memory.
SNAPSHOTS = "REPLICAX_SNAPSHOTS"
