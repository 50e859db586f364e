"""What a machine can do, measured and kept; times of plans are told by it."""

from __future__ import annotations

import json

import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.errors import PlanError
from replicax.planning import calibration
from replicax.planning.calibration import Calibration, Measured, calibrate, kept

FOUND = Calibration(
    machine="a machine",
    date="2026-11-28",
    devices=8,
    matmul=(Measured(100, 1e-3, 2e-3), Measured(1000, 0.5, 1.0)),
    memory=(Measured(10**6, 1e-3, 2e-3), Measured(10**7, 2e-2, 4e-2)),
    all_reduce=(Measured(10**3, 1e-3, 2e-3), Measured(10**6 + 10**3, 2e-3, 4e-3)),
)


@pytest.fixture
def kept_here(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_rates_are_the_most_and_the_least_of_what_is_typical():
    assert FOUND.flops() == (2 * 1000**3 / 0.5, 2 * 100**3 / 2e-3)
    assert FOUND.bandwidth() == (3 * 10**6 / 1e-3, 3 * 10**7 / 4e-2)


def test_virtual_devices_share_the_processors():
    of_eight = FOUND.sending(10, 10**6, 8, 1)
    assert of_eight == pytest.approx((10 * 1e-3 + 1e-3, 10 * 2e-3 + 2e-3))
    assert FOUND.sending(10, 10**6, 2, 1) == pytest.approx(tuple(each / 4 for each in of_eight))
    assert FOUND.sending(10, 10**6, 1, 1) == (0.0, 0.0)


def test_a_plan_tells_the_time_by_the_machine_that_was_measured(kept_here, monkeypatch):
    strategy = rx.MirroredStrategy()
    with strategy.scope():
        w = rx.Variable(jnp.ones([64, 64]))

    def step(x):
        _, [gradient] = rx.value_and_grad(lambda: (x @ w.value).sum() / 64, [w])()
        w.assign_sub(gradient)

    def planned():
        return rx.plan(step, (np.ones([64, 64], np.float32),), strategy=strategy)

    assert planned().seconds is None
    assert "--calibrate measures this machine" in str(planned())
    monkeypatch.setattr(calibration, "_measured", lambda: FOUND)
    calibrate()
    plan = planned()
    least, most = plan.seconds
    assert 1e-3 < least < most
    assert plan.seconds_by == "what was measured on a machine, 2026-11-28"
    assert "estimated by what was measured on a machine" in str(plan)


def test_what_cannot_be_read_is_measured_anew(kept_here):
    path = calibration._path()
    assert path.is_relative_to(kept_here)
    assert kept() is None
    path.parent.mkdir(parents=True)
    path.write_text('{"matmul": []')
    assert kept() is None


def test_memory_in_the_course_of_a_step_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    strategy = rx.OneDeviceStrategy("cpu:0")
    plan = rx.plan(lambda x: jnp.sort(x, 0), (np.ones([64, 64], np.float32),), strategy=strategy)
    plan.plot(tmp_path / "memory.svg")
    assert "in the course of the step" in (tmp_path / "memory.svg").read_text()


@pytest.mark.nightly
@pytest.mark.multiprocess
def test_this_machine_is_measured_and_that_is_kept(kept_here):
    found = calibrate()
    assert kept() == found
    assert len(found.matmul) == len(found.memory) == len(found.all_reduce) == 2
    assert found.flops()[0] > 1e8
    assert json.loads(calibration._path().read_text())["devices"] == 8
    assert "matmul" in str(found.table())


def test_a_folder_that_cannot_be_written_says_so(kept_here, monkeypatch):
    (kept_here / "replicax").write_text("a file in the place of the folder")
    monkeypatch.setattr(calibration, "_measured", lambda: FOUND)
    with pytest.raises(PlanError, match="XDG_CACHE_HOME"):
        calibrate()


def test_it_says_what_it_measures_a_line_each(monkeypatch, capsys):
    monkeypatch.setattr(calibration, "_timed", lambda size, run: {"size": size, "least": 1.0, "typical": 1.0})
    calibration._measure()
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "Products of square matrices, of 256 and 1024 rows.",
        "Sums of two arrays in memory, of 1 MiB and 64 MiB.",
        "Sums over 8 virtual devices, of 4 KiB and 4 MiB on each.",
    ]
