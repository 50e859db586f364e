"""`rx.certify`: what differs is named, what does not is certified; comparisons, rules, and the file."""

import json
import os
import signal
import subprocess
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import replicax as rx
from replicax.cli.app import app
from replicax.tools.certifying import Certificate, Difference, Outcome, catalogue
from replicax.tools.certifying.comparing import Tolerances, compare
from replicax.tools.certifying.recording import Event, Recording, Value
from replicax.tools.certifying.targets import REFUSED, REPLACED, refuse_strategies, replace_strategies, targets

SCRIPT = """
import jax.numpy as jnp
import numpy as np
import replicax as rx

strategy = rx.MirroredStrategy()
with strategy.scope():
    w = rx.Variable(np.ones((4, 2), "float32"), name="w")
x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")


def step(rows):
    def loss_fn():
        losses = jnp.square(rx.probe("outputs", rows @ w) - 1).sum(1)
        return AVERAGE

    loss, gradient = rx.value_and_grad(loss_fn, w)()
    w.assign_sub(0.1 * gradient)
    return loss


for rows in strategy.distribute_dataset(x, batch_size=16):
    strategy.reduce("sum", strategy.run(step, args=(rows,)))
"""
RIGHT = SCRIPT.replace("AVERAGE", "rx.compute_average_loss(losses, global_batch_size=16)")
WRONG = SCRIPT.replace("AVERAGE", "jnp.mean(losses)")


def written(folder: Path, text: str) -> Path:
    script = folder / "train.py"
    script.write_text(text, encoding="utf-8")
    return script


@pytest.mark.slow
@pytest.mark.multiprocess
def test_a_mistake_is_named_with_its_line_and_rule(tmp_path):
    certificate = rx.certify(written(tmp_path, WRONG), steps=2, on="mirrored:4", limit_s=200)
    (outcome,) = certificate.outcomes
    found = outcome.difference
    assert not certificate.is_certified
    assert (found.step, found.kind, found.name, found.rule) == (1, "loss", "the loss", catalogue.LOCAL_BATCH)
    assert found.line == f"train.py:{WRONG[: WRONG.index('loss, gradient =')].count(chr(10)) + 1}"
    assert list(tmp_path.iterdir()) == [tmp_path / "train.py"]


@pytest.mark.nightly
@pytest.mark.multiprocess
def test_a_right_script_is_certified_and_checked_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    odd = RIGHT.replace("=16", "=15")  # So one of two workers has no rows.
    script = written(tmp_path, odd)
    done = CliRunner().invoke(app, ["certify", str(script), "--steps", "2", "--on", "mirrored:4,workers:2"])
    assert done.exit_code == 0, done.output
    assert "mirrored:4: the numbers of one device: " in done.output
    assert "workers:2: the numbers of one device: " in done.output
    check = ["certify", "--check", "train.certificate.json"]
    again = CliRunner().invoke(app, check)
    assert again.exit_code == 0, again.output
    script.write_text(WRONG)
    assert CliRunner().invoke(app, check).exit_code == 1


TABLES = """
import jax
import keras
import keras_rs
import numpy as np
import replicax as rx

strategy = rx.MirroredStrategy()
with strategy.scope():
    table = keras_rs.layers.TableConfig("table", 7, 4, "glorot_uniform", keras.optimizers.Adagrad(0.1, 1e-6))
    feature = keras_rs.layers.FeatureConfig("feature", table, (None, 2), (None, 4))
    ids = keras.Input((2,), dtype="int32")
    model = keras.Model(ids, keras.layers.Dense(1)(rx.keras.DistributedEmbedding(feature)(ids)))
model.compile("adam", "mse")
x = np.random.default_rng(0).integers(0, 7, (60, 2))
jax.eval_shape(rx.function(lambda x: x + 1), np.ones(3))
model.fit(x, x.sum(1, keepdims=True), batch_size=15)
"""


@pytest.mark.nightly
@pytest.mark.multiprocess
def test_tables_are_compared_in_the_order_of_their_ids_and_on_each_worker(tmp_path):
    pytest.importorskip("keras_rs")
    certificate = rx.certify(written(tmp_path, TABLES), steps=2, on="mirrored:3,workers:2", limit_s=200)
    for outcome in certificate.outcomes:
        assert outcome.difference is None, outcome
        assert not any("table" in each for each in outcome.left_out), outcome


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_certificate_that_is_stopped_leaves_nothing(number, tmp_path):
    started, folder = tmp_path / "started", tmp_path / "tmp"
    folder.mkdir()
    text = f"import os, pathlib, time; pathlib.Path({str(started)!r}).write_text(str(os.getpid())); time.sleep(99)"
    command = [sys.executable, "-m", "replicax", "certify", str(written(tmp_path, text))]
    environment = {**os.environ, "TMPDIR": str(folder)}
    with subprocess.Popen(
        command, env=environment, stderr=subprocess.PIPE, text=True, preexec_fn=own_terminal
    ) as process:
        wait_for(lambda: started.exists() and started.read_text())
        os.killpg(process.pid, number)  # A terminal sends it to the whole group.
        said = process.stderr.read()
    assert process.returncode == 128 + number
    assert not list(folder.glob("replicax-*"))
    assert "Traceback" not in said
    wait_for(lambda: not Path(f"/proc/{started.read_text()}").exists())


def own_terminal() -> None:
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)


def wait_for(is_there: Callable[[], object]) -> None:
    deadline = time.monotonic() + 100
    while not is_there():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.nightly
@pytest.mark.multiprocess
def test_a_script_that_makes_no_step_is_no_subject(tmp_path):
    done = CliRunner().invoke(app, ["certify", str(written(tmp_path, "import replicax as rx\n"))])
    assert done.exit_code == 2
    assert "made 0 training steps and 0 strategies on one device: there is nothing to compare." in done.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["certify"], "Name the script."),
        (["certify", "none.py"], "There is no script 'none.py'."),
        (["certify", __file__, "--on", "mirrored"], "A target is mirrored:N, fully_sharded:N"),
        (["certify", __file__, "--on", "mirrored:1"], "with N of at least 2, got 'mirrored:1'"),
        (["certify", __file__, "--on", "mirrored:2,mirrored:2"], "mirrored:2 is there twice"),
        (["certify", __file__, "--steps", "0"], "at least 1 step, got 0"),
        (["certify", "--check", "none.json"], "none.json cannot be read: No such file"),
        (["certify", __file__, "--check", "none.json"], "give no SCRIPT"),
    ],
)
def test_wrong_options_end_with_code_2(arguments, message):
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2
    assert message in done.output


# Comparing: recordings as runs would leave them.

DRAWS = np.random.default_rng(0)
ARRAY = DRAWS.normal(size=(20, 30)).astype("float32")


def recording(*events: Event, error: str = "") -> Recording:
    return Recording(events, error, {"dtype": "float32"})


def event(kind: str, value: np.ndarray, name: str = "x", combine: str = "one", step: int = 1, parts: int = 1) -> Event:
    values = {f"replica {index}": Value.of(np.asarray(value)) for index in range(parts)}
    return Event(step, kind, name, 0, "train.py:3", combine, values)


def found_in(here: Event, there: Event, *others: Event, replicas: int = 8) -> Difference | None:
    """Returns the difference of two runs of an event, with its rule; last bits changed the first by 1e-7."""
    base, other = recording(here), recording(there, *others)
    other_bits = recording(event(here.kind, ARRAY * np.float32(1 + 2e-7), here.name))
    tolerances = Tolerances(base, [other_bits] if here.combine == "one" else [])
    found = compare(base, other, tolerances).difference
    if found is None or found[1] is None:
        return found and found[2]
    return catalogue.with_rule(found[2], catalogue.Case(found[0], found[1], base, other, replicas, tolerances))


def test_what_rounding_explains_is_no_difference():
    assert found_in(event("gradient", ARRAY), event("gradient", ARRAY * np.float32(1 + 4e-7))) is None


@pytest.mark.parametrize(
    ("kind", "factor", "rule"),
    [
        ("loss", 8, catalogue.LOCAL_BATCH),
        ("loss", 1 / 8, catalogue.MEAN_FOR_SUM),
        ("gradient", 8, catalogue.REDUCED_TWICE),
        ("all-reduce", 8, catalogue.SUM_FOR_MEAN),
        ("rate", 8**0.5, catalogue.RATE),
        ("update", 8, catalogue.RATE),
        ("update", 0, catalogue.FROZEN),
        ("gradient", 7.99, ""),  # No rule without a measured reason.
        ("gradient", 1.001, ""),
    ],
)
def test_ratios_decide_rules(kind, factor, rule):
    difference = found_in(event(kind, ARRAY), event(kind, ARRAY * np.float32(factor)))
    assert difference is not None
    assert (difference.rule, difference.line) == (rule, "train.py:3")


def test_dtypes_shapes_and_steps_are_compared():
    assert found_in(event("gradient", ARRAY), event("gradient", ARRAY.astype("float16"))).rule == catalogue.DTYPE
    assert found_in(event("gradient", ARRAY), event("gradient", ARRAY[1:])).rule == catalogue.SHAPE
    missing = found_in(event("gradient", ARRAY, step=2), event("gradient", ARRAY, step=1))
    assert "One device made 2 steps, and there were 1 there." in missing.detail


def test_infinite_values_differ_from_finite_ones():
    broken = ARRAY.copy()
    broken[3, 4] = np.nan
    assert found_in(event("gradient", ARRAY), event("gradient", broken)) is not None
    assert found_in(event("gradient", broken), event("gradient", broken)) is None


def test_parts_that_have_to_be_equal_are_compared():
    there = event("variable", ARRAY, parts=2)
    parts = {**there.parts, "replica 1": Value.of(2 * ARRAY)}
    assert found_in(event("variable", ARRAY), there._replace(parts=parts)).rule == catalogue.NOT_MIRRORED
    summed = event("loss", ARRAY / 2, combine="sum", parts=2)
    assert found_in(event("loss", ARRAY, combine="sum"), summed) is None


@pytest.mark.parametrize(
    ("there", "rule"),
    [
        ("aabb", catalogue.ROWS),
        ("abcc", catalogue.ROWS),
        ("abc", catalogue.ROWS),
        ("abcdd", catalogue.PADDING),
        ("abcdefgh", catalogue.BATCH_GROWS),
        ("aabbccdd", catalogue.BATCH_GROWS),
        ("wxyz", ""),
        ("dcba", None),
    ],
)
def test_rows_decide_rules(there, rule):
    def rows(text: str) -> Event:
        return Event(1, "rows", "the batch", 0, "", "rows", {"worker 0": Value.of_rows(text)})

    difference = found_in(rows("abcd"), rows(there), replicas=2)
    assert (None if difference is None else difference.rule) == rule


def test_equal_norms_decide_that_gradients_were_clipped_before():
    def norms(number: int, *values: float) -> Event:
        parts = {f"replica {index}": Value.of(np.float32(value)) for index, value in enumerate(values)}
        return Event(1, "local gradient norm", "n", number, "", "each", parts)

    there = event("all-reduce", ARRAY * np.float32(0.7))
    assert found_in(event("all-reduce", ARRAY), there, norms(0, 3, 4), norms(1, 1, 1)).rule == catalogue.CLIPPED
    assert found_in(event("all-reduce", ARRAY), there, norms(0, 3, 4), norms(1, 3, 4)).rule == ""


# The file.


def test_a_certificate_is_read_as_it_was_written(tmp_path):
    wrong = Difference(1, "loss", "<the loss>", "train.py:3", np.inf, 0.0, "It differs.", "a rule", "a reason")
    outcomes = tuple(
        Outcome(f"mirrored:{n}", n, "replica: 2", 3, 40, ("metric x",), 0.25, d) for n, d in ((2, None), (4, wrong))
    )
    before = Certificate("train.py", "0" * 64, ("--epochs", "1"), 3, "float32", ("bits",), {"jax": "1"}, outcomes)
    path = tmp_path / "train.certificate.json"
    before.write(path)
    assert Certificate.read(path) == before
    assert not before.is_certified
    assert "&lt;the loss&gt;" not in path.read_text()
    assert "<h1>These are not the numbers of one device.</h1>" in path.with_suffix(".html").read_text()
    found = json.loads(path.read_text())
    found["outcomes"][1]["difference"] = None
    path.write_text(json.dumps(found))
    with pytest.raises(rx.errors.ArgumentError, match="was changed after it was written"):
        Certificate.read(path)
    path.write_text("[]")
    with pytest.raises(rx.errors.ArgumentError, match="is no certificate"):
        Certificate.read(path)


def test_targets_say_processes_and_devices():
    assert [(each.workers, each.devices) for each in targets("mirrored:8, workers:2")] == [(1, 8), (2, 1)]


def test_a_strategy_in_the_place_of_another_keeps_its_options():
    asked = []
    names = {name: getattr(rx, name) for name in (*REPLACED, *REFUSED)}
    place = types.SimpleNamespace(**names, config=types.SimpleNamespace())
    place.MultiWorkerMirroredStrategy = type(
        "Workers", (rx.OneDeviceStrategy,), {"__init__": Workers.__init__, "asked": asked}
    )
    replace_strategies(place, "MultiWorkerMirroredStrategy", lambda strategy: None)
    refuse_strategies(place)
    place.MirroredStrategy(4, random_numbers="per_row", precision="bf16")
    assert asked == [{"random_numbers": "per_row", "precision": "bf16"}]
    with pytest.raises(
        rx.errors.ArgumentError, match=r"rx.DiLoCoStrategy cannot be certified: its workers train alone"
    ):
        place.DiLoCoStrategy()


class Workers:
    def __init__(self, cluster_resolver=None, *, random_numbers=None, precision=None):
        assert cluster_resolver is None
        self.asked.append({"random_numbers": random_numbers, "precision": precision})


def test_a_probe_changes_nothing():
    value = object()
    assert rx.probe("x", value) is value
