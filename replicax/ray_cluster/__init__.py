"""How the Ray cluster comes into being that the servers and workers of a parameter server strategy live in."""

from replicax.ray_cluster.connection import RayCluster, connect
from replicax.ray_cluster.task_server import Server, serve_if_task

__all__ = ["RayCluster", "Server", "connect", "serve_if_task"]
