"""What the tests of several processes share."""

from __future__ import annotations

from pathlib import Path

from replicax.testing import free_ports, run_workers

__all__ = ["ROOT", "free_ports", "run_workers"]

ROOT = Path(__file__).resolve().parent.parent.parent
