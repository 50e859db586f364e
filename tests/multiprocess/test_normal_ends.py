"""Workers that have done their work end with the exit code that they have; the soak does so a thousand times."""

from __future__ import annotations

import pytest

from tests.soak.normal_ends import LONGEST_S, Case, soak

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(2 * LONGEST_S)]


@pytest.mark.nightly
def test_workers_of_each_kind_end_as_they_should():
    cases = [Case("notebook", "exception", 2), Case("elastic", "exit", 2), Case("preemptible", "last", 2)]
    found = soak(cases, at_once=len(cases))
    assert [each.wrong for each in found.values()] == [""] * len(cases)
    assert [len(each.ends) for each in found.values()] == [case.processes for case in cases]
