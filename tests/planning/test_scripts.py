"""`replicax plan` and `rx.plan(on=...)`: a process with devices that do not exist."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import replicax as rx
from replicax.cli.app import app
from replicax.errors import PlanError
from tests.job.launching.conftest import is_alive, wait_for

pytestmark = [pytest.mark.multiprocess, pytest.mark.cpu]
SCRIPT = str(Path(__file__).with_name("script.py"))


def asked(*arguments):
    return CliRunner().invoke(app, ["plan", *arguments])


@pytest.fixture(scope="module")
def really_held(tmp_path_factory):
    out = tmp_path_factory.mktemp("held") / "held.json"
    subprocess.run(
        [sys.executable, SCRIPT, "FullyShardedStrategy", "32", "512", str(out)],
        check=True,
        timeout=120,
        env={**os.environ, "JAX_NUM_CPU_DEVICES": "8"},
    )
    return json.loads(out.read_text())


def test_a_script_is_planned_as_it_would_be_held(really_held):
    result = asked(SCRIPT, "--on", "cpu:8", "--json", "--steps", "train,predict", "FullyShardedStrategy", "32", "512")
    assert result.exit_code == 0, result.output
    train, predict = json.loads(result.stdout)
    planned = {each["name"].replace("_2/", "_1/"): each["bytes"] for each in train["state"]}
    assert sum(planned.values()) == sum(really_held.values())
    assert train["bytes"]["batch"] == 4 * 4 * (24 + 8)
    assert {each["kind"] for each in train["collectives"]} >= {"all-gather"}
    assert (train["kind"], predict["kind"]) == ("train", "predict")
    assert "training" not in result.stdout


def test_what_does_not_fit_says_why_in_one_sentence():
    result = asked(SCRIPT, "--on", "gpu:2x0.001GiB", "MirroredStrategy", "2", "20000")
    assert result.exit_code == 3, result.output
    last = result.stdout.strip().splitlines()[-1]
    assert last.startswith("It does not fit: ")
    assert "of the 1.02 MiB of a device of gpu:2x0.001GiB; temporaries take" in last


def test_what_cannot_be_planned_is_named(tmp_path):
    script = tmp_path / "servers.py"
    script.write_text("import replicax as rx\nrx.DiLoCoStrategy(every=10)\n")
    result = asked(str(script), "--on", "cpu:2")
    assert result.exit_code == 2
    assert "DiLoCoStrategy cannot be planned" in result.stderr


def test_a_script_that_fails_or_never_trains_says_so(tmp_path):
    script = tmp_path / "fails.py"
    script.write_text("import sys; sys.exit(7)\n")
    assert asked(str(script), "--on", "cpu:2").exit_code == 2
    script.write_text("print('done')\n")
    result = asked(str(script), "--on", "cpu:2")
    assert result.exit_code == 2
    assert "ended without a step of the kind train" in result.stderr


def test_a_script_that_catches_everything_and_goes_on_is_ended(tmp_path, monkeypatch):
    script = tmp_path / "catches.py"
    script.write_text(
        "import replicax as rx, keras, numpy as np\n"
        "with rx.MirroredStrategy().scope():\n"
        "    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])\n"
        "model.compile('sgd', 'mse')\n"
        "try:\n"
        "    model.fit(np.ones((8, 4)), np.ones((8, 1)), verbose=0)\n"
        "except BaseException:\n"
        "    while True: pass\n"
    )
    result = asked(str(script), "--on", "cpu:2", "--timeout", "100")
    assert result.exit_code == 0, result.output
    assert "It needs" in result.stdout


def test_wrong_options_start_nothing():
    assert "Say which script trains: replicax plan train.py --on cpu:4" in asked("--on", "cpu:4").stderr
    assert asked("missing.py", "--on", "cpu:2").exit_code == 2
    assert asked(SCRIPT, "--on", "abacus:2").exit_code == 2
    assert asked(SCRIPT, "--on", "cpu:2", "--steps", "sleep").exit_code == 2


def _train(rows):
    import jax.numpy as jnp
    import numpy as np

    strategy = rx.get_strategy()
    w = rx.Variable(jnp.ones([256, 64]))

    def step(x):
        _, [gradient] = rx.value_and_grad(lambda: (x @ w.value).sum(), [w])()
        w.assign_sub(1e-3 * gradient)

    for batch in strategy.distribute_dataset([np.ones([rows, 256], np.float32)]):
        strategy.run(step, (batch,))


def test_a_function_plays_a_script():
    plan = rx.plan(_train, (64,), strategy=rx.MirroredStrategy, on="cpu:32", hosts=4)
    assert plan.bytes_of("parameters") == 256 * 64 * 4
    assert (plan.on.size, plan.hosts) == (32, 4)
    assert plan.batch == 2 * 256 * 4
    assert "The memory of cpu:32 is unknown: --on cpu:32x4GiB, for example, says" in plan.verdict


def test_one_that_takes_too_long_is_ended():
    def sleep():
        import time

        time.sleep(600)

    with pytest.raises(PlanError, match="after 3 s"):
        rx.plan(sleep, on="cpu:1", timeout=3)


@pytest.mark.skipif(sys.platform == "win32", reason="sends signals")
@pytest.mark.parametrize(
    ("number", "more"), [("SIGTERM", ()), ("SIGINT", ()), ("SIGTERM", ("--search", "--jobs", "2"))]
)
def test_a_signal_ends_the_script_and_its_folder(tmp_path, number, more):
    folders, script = tmp_path / "folders", tmp_path / "sleeps.py"
    folders.mkdir()
    script.write_text(
        "import pathlib, subprocess, time\n"
        "child = subprocess.Popen(['sleep', '100'])\n"
        "pathlib.Path(__file__).with_name(f'pid-{child.pid}').touch()\n"
        "time.sleep(100)\n"
    )
    command = [sys.executable, "-m", "replicax", "plan", str(script), "--on", "cpu:2", *more]
    environ = {**os.environ, "TMPDIR": str(folders)}
    with subprocess.Popen(command, env=environ, stderr=subprocess.DEVNULL) as asked_for:
        try:
            wait_for(lambda: any(tmp_path.glob("pid-*")))
            asked_for.send_signal(getattr(signal, number))
            assert asked_for.wait(60) == 128 + getattr(signal, number)
        finally:
            asked_for.kill()
    assert not list(folders.glob("replicax-plan-*"))
    pids = [int(path.name.removeprefix("pid-")) for path in tmp_path.glob("pid-*")]
    wait_for(lambda: not any(map(is_alive, pids)))


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs libtpu: pip install 'replicax[plan]'")
def test_the_compiler_of_tpus_says_what_a_step_needs():
    plan = rx.plan(_train, (64,), strategy=rx.TPUStrategy, on="v5e:2x2")
    assert plan.memory.by.startswith("libtpu ")
    assert plan.memory.needed > 256 * 64 * 4
    assert [each.axis for each in plan.collectives if each.kind == "all-reduce"] == ["replica"]
    assert plan.fits
    assert plan.seconds[0] <= plan.seconds[1]


def test_a_search_ranks_what_fits_and_says_what_to_write():
    found = rx.plan.search(_train, (64,), on="cpu:1x1GiB")
    [only] = found.candidates
    assert found.best is only
    assert only.plan.bytes_of("parameters") == 256 * 64 * 4
    assert only.lines == ["strategy = rx.OneDeviceStrategy(device='cpu:0')"]
    assert "fits: " in str(found)
    assert "strategy = rx.OneDeviceStrategy(device='cpu:0')" in str(found).splitlines()[-1]


@pytest.mark.nightly
def test_a_layout_under_which_every_device_computes_all_rows_is_not_the_best():
    """A batch of 50 rows is not divided by a mesh of 4 by 2 devices: nothing is sent, and nothing gained."""
    found = rx.plan.search(_train, (50,), on="cpu:8").candidates
    assert sum(each.bytes for each in found[0].plan.collectives) > 0
    alone = ["every device computes all rows" in each.reason for each in found]
    assert any(alone)
    assert alone == sorted(alone)


@pytest.mark.nightly
def test_a_search_tries_remat_and_accumulation_where_temporaries_do_not_fit():
    result = asked(SCRIPT, "--on", "gpu:2x0.004GiB", "--search", "--json", "MirroredStrategy", "64", "20000")
    found = json.loads(result.stdout)["candidates"]
    ways = {
        (each["variation"]["strategy"], each["variation"]["remat"], each["variation"]["accumulation"]) for each in found
    }
    assert {("MirroredStrategy", False, 1), ("FullyShardedStrategy", False, 1), ("LayoutStrategy", False, 1)} <= ways
    assert any(remat for _, remat, _ in ways)
    assert any(accumulation > 1 for *_, accumulation in ways)
    assert [each["fits"] for each in found] == sorted((each["fits"] for each in found), reverse=True)
    pruned = [each for each in found if each["plan"] and each["plan"]["memory"] is None]
    assert all("does not fit: " in each["reason"] for each in pruned)
    assert result.exit_code == (0 if found[0]["fits"] else 3)


def test_a_random_key_in_the_state_and_a_batch_that_does_not_divide(tmp_path: Path):
    script = tmp_path / "keys.py"
    script.write_text(
        "import jax, jax.numpy as jnp, numpy as np, replicax as rx\n"
        "strategy = rx.MirroredStrategy()\n"
        "def step(state, x):\n"
        "    key, own = jax.random.split(state['key'])\n"
        "    loss = lambda w: rx.compute_average_loss(jnp.square(x @ w + jax.random.normal(own, ())))\n"
        "    return {'key': key, 'w': state['w'] - jax.grad(loss)(state['w']), 'step': state['step'] + 1}\n"
        "state = strategy.replicate({'key': jax.random.key(0), 'w': jnp.ones(4), 'step': jnp.int32(0)})\n"
        "for x in strategy.distribute_dataset(np.ones((60, 4), 'float32'), batch_size=60):\n"
        "    state = strategy.run(step, args=(state, x))\n"
    )
    result = asked(str(script), "--on", "cpu:8", "--json")
    assert result.exit_code == 0, result.output
    (plan,) = json.loads(result.stdout)
    assert plan["bytes"] == {"parameters": 16, "optimizer state": 0, "other state": 8 + 4, "batch": 10 * 16}


def test_callbacks_of_fit_leave_the_files_of_an_earlier_training_alone(tmp_path: Path):
    script, log = tmp_path / "logs.py", tmp_path / "log.csv"
    log.write_text("epoch,loss\n0,1.0\n")
    script.write_text(
        "import replicax as rx, keras, numpy as np\n"
        "with rx.MirroredStrategy().scope():\n"
        "    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])\n"
        "model.compile('sgd', 'mse')\n"
        f"callbacks = [keras.callbacks.CSVLogger({str(log)!r})]\n"
        "model.fit(np.ones((8, 4)), np.ones((8, 1)), callbacks=callbacks, verbose=0)\n"
    )
    result = asked(str(script), "--on", "cpu:8")
    assert result.exit_code == 0, result.output
    assert log.read_text() == "epoch,loss\n0,1.0\n"
