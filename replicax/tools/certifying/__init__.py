"""`replicax certify`: does a script compute on several devices what it computes on one?

1. `targets.py`: where the script runs, such as `mirrored:8`, and how the strategies of a script become another.
2. `starting.py` starts a process for each run: one device, one device with other rounding (`perturbing.py`), and each
   target; workers are those of `replicax run`. `runner.py` is what the process does.
3. `taps.py` lets the runner see batches, losses, gradients, variables, results and probes. `recording.py` keeps them,
   by step and name, as few numbers as `replicax migrate --prove` keeps of a variable.
4. `comparing.py` compares two recordings in the order of causes, and finds the first tensor that differs by more than
   other rounding explains. `catalogue.py` says which rule is broken, where a measured property decides that.
5. `certificate.py` is what is left of it: JSON, and a page to read.

`replaying.py` is for when copies differ in a training: it makes the steps again that `ReplicaDigest` has kept.
"""

from replicax.tools.certifying.certificate import Certificate as Certificate, Outcome as Outcome
from replicax.tools.certifying.certifying import certify as certify
from replicax.tools.certifying.comparing import Difference as Difference
from replicax.tools.certifying.probing import probe as probe
from replicax.tools.certifying.replaying import Replay as Replay, ReplayRun as ReplayRun, replay as replay
