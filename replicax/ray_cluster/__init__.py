"""How the Ray cluster comes into being that the servers and workers of a parameter server strategy live in."""

from replicax.ray_cluster.connection import Cluster, connect
from replicax.ray_cluster.server import Server, serve_if_task

__all__ = ["Cluster", "Server", "connect", "serve_if_task"]
