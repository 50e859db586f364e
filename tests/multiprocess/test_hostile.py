"""The short form of `tests/soak/hostile.py`."""

from __future__ import annotations

import pytest

from tests.soak import hostile


@pytest.mark.multiprocess
def test_a_job_ends_right_whatever_strangers_send_to_its_ports(capsys):
    assert hostile.main(["--messages", "400", "--jobs", "1", "--steps", "12", "--seed", "7"]) == 0
    said = capsys.readouterr().out
    assert "RESULT crashes 0" in said
    assert int(said.split("RESULT messages ")[1].split()[0]) >= 350
