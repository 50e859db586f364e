"""A job over hosts is started again after an outage, and the launcher starts one on a host without a network."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from replicax.errors import ExitCode
from tests.hosts import jobs
from tests.hosts.conftest import MakeLan
from tests.hosts.training import ENVIRONMENT, SECONDS, by_name, check_trained, start_workers

pytestmark = [pytest.mark.nightly, pytest.mark.multiprocess, pytest.mark.slow]


def test_started_again_it_goes_on_where_it_was(make_lan: MakeLan, tmp_path: Path):
    lan = make_lan("alpha", "beta")
    folder = str(tmp_path / "checkpoints")  # Both hosts see it.
    first = start_workers(lan, by_name(lan), steps=10_000, pause=0.1, stall_timeout=4, folder=folder)
    first[0].wait_for("step 5 ")
    lan.hosts[1].cable.cut()
    for worker in first:
        assert worker.wait(SECONDS) in (ExitCode.STALLED, ExitCode.PEER_LOST), worker.log
    lan.hosts[1].cable.mend()
    done = max(int(number) for number in re.findall(r"^step (\d+)", first[0].log, re.MULTILINE)) + 1
    steps = done + 3
    again = start_workers(lan, by_name(lan), steps=steps, folder=folder)
    check_trained(again, steps)
    begin = re.search(r"^begins at (\d+)", again[0].log, re.MULTILINE)
    assert begin is not None
    assert 4 <= int(begin[1]) <= done


def test_the_launcher_on_a_host_that_is_cut_off(make_lan: MakeLan):
    lan = make_lan("alpha")
    lan.hosts[0].cable.cut()
    command = ("python", "-m", "replicax", "run", "--workers", "2", jobs.__file__, "workers", json.dumps({"steps": 3}))
    launcher = lan.hosts[0].start(*command, **ENVIRONMENT)
    assert launcher.wait(SECONDS) == 0, launcher.log
    assert len(re.findall(r"weights \[\[", launcher.log)) == 2, launcher.log
