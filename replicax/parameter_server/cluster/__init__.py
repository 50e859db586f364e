"""How the Ray cluster comes into being that the servers and workers of a parameter server strategy live in."""

from replicax.parameter_server.cluster.connection import Cluster, connect
from replicax.parameter_server.cluster.server import Server, serve_if_task

__all__ = ["Cluster", "Server", "connect", "serve_if_task"]
