"""Tables for recommenders: on the devices of one process beside hand-written JAX, and on parameter servers.

python benchmarks/tables.py [--devices 8] [--rounds 9] [--steps 5] [--only devices|servers]
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import replicax as rx


def main() -> None:
    """Measures, and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--only", choices=("devices", "servers"))
    given = parser.parse_args()
    if given.only != "servers":
        rx.config.set_virtual_devices(given.devices)
        import tables_devices

        for name, value in tables_devices.measure(given.devices, given.rounds, given.steps).items():
            print(f"RESULT {name} {value:.3g}")
    if given.only != "devices":
        import tables_servers

        for name, value in tables_servers.measure().items():
            print(f"RESULT {name} {value:.3g}")


if __name__ == "__main__":
    main()
