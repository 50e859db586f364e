from __future__ import annotations

import pytest

from replicax.errors import ExitCode, exit_codes
from replicax.errors.exit_codes import describe, from_returncode, is_restartable


def test_the_page_lists_every_code():
    assert [code for code in ExitCode if f"| {code:d} | `{code.name}` |" not in exit_codes.__doc__] == []


@pytest.mark.parametrize(("returncode", "code"), [(0, 0), (3, 3), (-9, 137), (-15, 143), (-2, 130)])
def test_a_signal_becomes_what_a_shell_reports(returncode: int, code: int):
    assert from_returncode(returncode) == code


def test_what_a_restart_can_cure():
    assert [code for code in (0, 1, 2, 3, 70, 71, 72, 75, 134, 137) if is_restartable(code)] == [
        1,
        3,
        70,
        71,
        75,
        134,
        137,
    ]


def test_descriptions():
    assert describe(70) == "exit code 70: no progress for too long"
    assert describe(139) == "exit code 139: ended by SIGSEGV"
    assert describe(42) == "exit code 42"
    assert describe(255) == "exit code 255"
