"""Where did my day go? The ledger of a job: what each worker did, every second of it.

1. The clock of each process (`runtime/clock.py`) writes what its thread did, by class; the launcher writes when
   processes started and ended (`job/processes/job_ledger.py`).
2. `lines.py` reads that. `reading.py` puts it together: one timeline of a worker across restarts, and the classes that
   only show where all workers are seen.
3. `culprits.py` says what has cost most, or nothing, if nothing stands out.
4. `showing.py` has the words, the picture and the trace of `replicax ledger`.
"""

from replicax.runtime.clock import CLASSES
from replicax.tools.ledger.culprits import Culprit
from replicax.tools.ledger.reading import Ledger, Worker, read
from replicax.tools.ledger.recording import recording, section

__all__ = ["CLASSES", "Culprit", "Ledger", "Worker", "read", "recording", "section"]
