"""Plans: will it fit, what will it send, how long will it take, before anybody rents a device.

1. `topologies.py` says which devices there are, and what is published about them.
2. `process.py` starts a process of its own, `child.py`, which runs a script on devices that do not exist. Arrays have
   no values there (`compat/jax_abstract.py`), so a model of any size is made in the memory of its names.
3. Where the script makes its first step, the program tells the planner (`context.planner`). `planner.py` adds up the
   state from where the strategy puts it, has the step compiled for the devices, by libtpu for TPUs, and reads what the
   compiled program needs and sends.
4. `work.py` counts operations in the traced program; `report.py` is the result.
"""

from replicax.planning.planning import plan
from replicax.planning.report import Held, Memory, Plan, Sent
from replicax.planning.topologies import Topology

__all__ = ["Held", "Memory", "Plan", "Sent", "Topology", "plan"]
