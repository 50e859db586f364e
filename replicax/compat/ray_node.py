"""Runs `ray start --block` with an address of our choice for this node.

It is started by its path, as a process of its own, and imports nothing of replicax: JAX has no business there.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

# Functions of Ray's private `services`. `replicax.compat.ray` says what is used instead when one goes.
NODE, NODE_IP_ADDRESS = "get_node", "get_node_ip_address"
_SECONDS_BETWEEN_LOOKS = 0.5  # until the deadline


def patient(get_node: Callable[..., Any], seconds: float) -> Callable[..., Any]:
    """Returns Ray's function for what is known of a node, so that it waits longer for the node than Ray's 30 s."""

    def found(*args: Any, **kwargs: Any) -> Any:
        deadline = time.monotonic() + seconds
        while True:
            try:
                return get_node(*args, **kwargs)
            except RuntimeError:  # The node is not there.
                if time.monotonic() >= deadline:
                    raise
                time.sleep(_SECONDS_BETWEEN_LOOKS)

    return found


def main(seconds: float, ip: str, arguments: list[str]) -> None:
    """Starts the node, and ends when it does; waits `seconds` for the node's processes."""
    from ray._private import services
    from ray.scripts.scripts import main as ray_command

    setattr(services, NODE, patient(getattr(services, NODE), seconds))
    # Given on the command line alone, 127.0.0.1 would become the machine's address in the network.
    setattr(services, NODE_IP_ADDRESS, lambda *_, **__: ip)
    sys.argv = ["ray", "start", *arguments, "--node-ip-address", ip, "--block"]
    ray_command()


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2], sys.argv[3:])
