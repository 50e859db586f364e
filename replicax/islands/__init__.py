"""Low-communication training: workers train alone, each an island, and synchronize after every H steps."""

from replicax.islands.strategy import DiLoCoStrategy as DiLoCoStrategy, LocalSGDStrategy as LocalSGDStrategy
