"""Runs `ray start --block` with an address of our choice for this node. Started by its path; a process of its own."""

from __future__ import annotations

import sys


def main(ip: str, arguments: list[str]) -> None:
    """Starts the node, and ends when it does.

    Args:
        ip: The node's address, where it listens. Told on the command line alone, 127.0.0.1 would become the machine's
            address in the network.
        arguments: Those of `ray start`.
    """
    from ray._private import services
    from ray.scripts.scripts import main as ray_command

    services.get_node_ip_address = lambda *_, **__: ip
    sys.argv = ["ray", "start", *arguments, "--node-ip-address", ip, "--block"]
    ray_command()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
