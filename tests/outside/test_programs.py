"""Each public program ends with the parameters that it has on one device."""

from __future__ import annotations

import pytest

from tests.outside.cases import CASES, TOLERANCE, Case
from tests.outside.comparing import PROGRAMS, compare

ALWAYS = ("collaborative_filtering", "deep_q", "reinforce")  # quick ones: Model.fit, a loop of tf.distribute, plain JAX
EACH = [pytest.param(case, id=case.name, marks=[] if case.name in ALWAYS else pytest.mark.nightly) for case in CASES]


@pytest.mark.nightly
@pytest.mark.parametrize("case", EACH)
def test_is_as_on_one_device(case: Case):
    if not case.can_run:
        pytest.skip(f"needs {case.needs}")
    found = compare(case.name)
    assert found.is_equal(TOLERANCE), found


def test_every_program_is_in_the_table():
    assert sorted(path.stem for path in PROGRAMS.glob("[!_]*.py")) == [case.name for case in CASES]


def test_each_says_after_what_it_is_written():
    without_link = [case.name for case in CASES if "After https://" not in (PROGRAMS / f"{case.name}.py").read_text()]
    assert not without_link
