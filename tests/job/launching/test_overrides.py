"""Environment variables, as `replicax doctor` shows them."""

import re
from pathlib import Path

import pytest

import replicax
from replicax.tools.doctor import Severity
from replicax.tools.doctor.overrides import OF_LAUNCHERS, OVERRIDES, check_overrides


def test_what_is_set_is_shown():
    found = check_overrides({"REPLICAX_STALL_TIMEOUT": "6", "XLA_FLAGS": "--x", "HOME": "/root"})
    assert found.status is Severity.OK
    assert found.text == "REPLICAX_STALL_TIMEOUT=6, XLA_FLAGS=--x"
    assert check_overrides({}).text == "none"


def test_secrets_are_not_shown():
    assert "abc" not in check_overrides({"REPLICAX_TOKEN": "abc"}).text


@pytest.mark.parametrize("name", OF_LAUNCHERS)
def test_what_a_launcher_sets_is_no_mistake(name):
    assert check_overrides({name: "1"}).status is Severity.OK


def test_a_name_that_nothing_reads_is_a_warning_with_the_nearest():
    found = check_overrides({"REPLICAX_STALL_TIME": "6"})
    assert found.status is Severity.WARN
    assert "nothing reads REPLICAX_STALL_TIME" in found.text
    assert "REPLICAX_STALL_TIMEOUT" in found.cure


def test_all_variables_that_the_package_names_are_known():
    sources = Path(replicax.__file__).parent.rglob("*.py")
    named = {
        name for path in sources for name in re.findall(r'"(REPLICAX_[A-Z_]*[A-Z])"', path.read_text(encoding="utf-8"))
    }
    assert named <= {*OVERRIDES, *OF_LAUNCHERS}
