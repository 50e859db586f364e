"""The short form of `tests/soak/hostile.py`."""

from __future__ import annotations

import re

import pytest

from tests.soak import hostile


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.parametrize("kind", [pytest.param("fixed", marks=pytest.mark.nightly), "fixed-store"])
def test_a_job_ends_right_whatever_strangers_send_to_its_ports(kind: str, capsys: pytest.CaptureFixture[str]):
    code = hostile.main(["--rounds", "1", "--seconds", "3", "--kinds", kind, "--seed", "7"])
    said = capsys.readouterr().out
    counts = {name: int(count) for name, count in re.findall(r"^RESULT (\w+) (\d+)$", said, re.MULTILINE)}
    assert code == 0, said
    assert [counts[name] for name in hostile.RESULTS] == [0] * len(hostile.RESULTS)
    assert min(counts[name] for name in ("ports", "messages", "silent", "calls")) > 0
    assert kind == "fixed" or counts["writes"] > 0
