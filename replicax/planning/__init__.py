"""Plans: will it fit, what will it send, how long will it take, before anybody rents a device.

1. `topologies.py` says which devices there are, and what is published about them.
2. `process.py` starts a process of its own, `child.py`, which runs a script on devices that do not exist. Arrays have
   no values there (`compat/jax_abstract.py`), so a model of any size is made in the memory of its names.
3. Where the script makes its first step, the program tells the planner (`context.planner`). `planner.py` adds up the
   state from where the strategy puts it, has the step compiled for the devices (`compiling.py`; by libtpu for TPUs,
   which is not awaited to its end), and reads what the compiled program needs and sends.
4. `buffers.py` finds the largest arrays in its text, and the lines that made them; `work.py` counts operations in the
   traced program; `report.py` is the result.
5. `search.py` plans a script in many ways (`variations.py`), in processes side by side, and ranks them.
"""

from replicax.planning.buffers import Buffer
from replicax.planning.planning import plan
from replicax.planning.report import Held, Memory, Plan, Sent
from replicax.planning.search import Candidate, Search
from replicax.planning.topologies import Topology
from replicax.planning.variations import Variation

__all__ = ["Buffer", "Candidate", "Held", "Memory", "Plan", "Search", "Sent", "Topology", "Variation", "plan"]
