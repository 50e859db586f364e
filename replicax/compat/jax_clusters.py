"""A kind of cluster that JAX finds by itself, so that `jax.distributed.initialize()` needs no argument in a job.

JAX reads only the address of process 0 from the environment. How many processes there are, and which one this is, it
asks the kinds of cluster that it knows. Importing this module adds the one that `JAX_NUM_PROCESSES` and
`JAX_PROCESS_ID` describe. In a task of `replicax run` it is loaded as soon as the script imports JAX
(`job/processes/child.py`), so it imports nothing else of replicax. Guard: tests/compat/test_jax_clusters.py.

Without the name: scripts pass `num_processes` and `process_id` to `initialize`.
"""

from __future__ import annotations

import os

from jax._src.clusters import ClusterEnv

_ADDRESS, _COUNT, _INDEX = "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"
_NAME = "replicax"


def _add() -> None:
    """Adds the kind of cluster before all others: whoever sets these variables means them, in a job of Slurm too."""
    kinds = ClusterEnv._cluster_types
    if any(kind.name == _NAME for kind in kinds):  # Both the task and `import replicax` come here.
        return

    class ClusterOfVariables(ClusterEnv):
        """The cluster that JAX's variables describe."""

        name = _NAME

        @classmethod
        def is_env_present(cls) -> bool:
            return all(os.environ.get(name) for name in (_ADDRESS, _COUNT, _INDEX))

        @classmethod
        def get_coordinator_address(cls, *_: object, **__: object) -> str:
            return os.environ[_ADDRESS]

        @classmethod
        def get_process_count(cls) -> int:
            return int(os.environ[_COUNT])

        @classmethod
        def get_process_id(cls) -> int:
            return int(os.environ[_INDEX])

    kinds.insert(0, kinds.pop())


_add()
