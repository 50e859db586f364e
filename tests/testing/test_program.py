"""What workers of a test import, and what is shown of them, in this process."""

from __future__ import annotations

import colorsys
import sys
from pathlib import Path

import pytest

from replicax.testing import free_ports, program, workers


def test_of_two_modules_of_one_name_the_tests_own_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "colorsys", colorsys)  # Python's own; it is there again afterwards.
    file = tmp_path / "colorsys.py"
    file.write_text("OWN = 3\n")
    assert program._module("colorsys", str(file)).OWN == 3


def test_of_a_long_log_the_end_is_shown():
    shown = workers._end("\n".join(f"line {number}" for number in range(200))).splitlines()
    assert shown[0] == "... (120 lines before)"
    assert shown[-1] == "line 199"
    assert workers._end("one\ntwo") == "one\ntwo"


def test_each_port_is_another_one():
    assert len(set(free_ports(5))) == 5
