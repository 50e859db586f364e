"""Low-communication training: workers train alone, each an island, and synchronize after every H steps."""

from replicax.islands.diloco import DiLoCoStrategy as DiLoCoStrategy
from replicax.islands.local_sgd import LocalSGDStrategy as LocalSGDStrategy
