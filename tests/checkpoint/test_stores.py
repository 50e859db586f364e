"""Trainings whose checkpoints are in real stores: S3 by moto, GCS by gcp-storage-emulator, on this machine."""

from __future__ import annotations

import importlib.util

import jax.numpy as jnp
import keras
import numpy as np
import pytest
from typer.testing import CliRunner

import replicax as rx
from replicax.checkpoint.places import StorePath, StorePatience, absolute
from replicax.cli.app import app
from tests.stores.proxy import Fault, Proxy
from tests.stores.servers import BUCKET, environ, environment, store

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(importlib.util.find_spec("moto") is None, reason="the extra nightly brings the servers"),
]
FAULTS = [fault for fault in Fault if fault not in (Fault.KILL, Fault.DONE_AND_KILL)]


@pytest.fixture(scope="module", params=["s3", "gs"])
def served(request):
    """A store behind a proxy: the kind of its URLs, and the proxy."""
    with store(request.param) as port, Proxy(port).running() as proxy:
        yield request.param, proxy


@pytest.fixture
def folder(served, request):
    """The URL of an empty folder."""
    scheme, proxy = served
    proxy.reset()
    with environ(environment(scheme, proxy.port)):
        yield f"{scheme}://{BUCKET}/{request.node.name.replace('[', '-').replace(']', '')}"


def net() -> keras.Model:
    with rx.MirroredStrategy().scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    return model


def test_a_manager_and_what_looks_into_its_folder(folder):
    w = rx.Variable(jnp.zeros(4))
    with rx.CheckpointManager(folder, max_to_keep=2, objects={"w": w, "n": 1}) as manager:
        for step in (1, 2, 3):
            w.assign(w.value + 1)
            manager.save(step)
    assert manager.all_steps() == [2, 3]
    assert rx.latest_checkpoint(folder) == f"{folder}/00000003"
    told = CliRunner().invoke(app, ["ckpt", "inspect", folder])
    assert (told.exit_code, "step 3, 1 arrays" in told.stdout) == (0, True)
    assert CliRunner().invoke(app, ["ckpt", "verify", folder]).exit_code == 0
    told = CliRunner().invoke(app, ["ckpt", "diff", f"{folder}/00000002", f"{folder}/00000003", "--json"])
    assert (told.exit_code, '"w": 1.0' in told.stdout) == (1, True)
    assert CliRunner().invoke(app, ["ckpt", "verify", "az://somewhere/else"]).exit_code == 2


def test_a_flipped_byte_is_damage(folder):
    path = rx.Checkpoint(w=rx.Variable(jnp.arange(4.0))).write(f"{folder}/c")
    (chunk,) = (name for name in path.names() if name.endswith("-w/0"))
    data = bytearray((path / chunk).read_bytes())
    data[-1] ^= 1
    (path / chunk).write_bytes(bytes(data))
    with pytest.raises(rx.errors.CheckpointError, match="-w/0 has other contents than were written"):
        rx.Checkpoint(w=rx.Variable(jnp.zeros(4))).restore(path)
    (path / chunk).unlink()
    assert CliRunner().invoke(app, ["ckpt", "verify", str(path)]).exit_code == 1


def test_a_fit_goes_on_from_its_backup_and_deletes_it_at_the_end(folder):
    rows = np.ones((8, 2), "float32"), np.ones((8, 1), "float32")

    begun: list[int] = []

    class Dies(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            begun.append(epoch)
            if begun == [0, 1, 2]:
                raise KeyboardInterrupt

    first = net()
    with pytest.raises(KeyboardInterrupt):
        first.fit(*rows, epochs=4, verbose=0, callbacks=[rx.keras.BackupAndRestore(folder), Dies()])
    second = net()
    history = second.fit(*rows, epochs=4, verbose=0, callbacks=[rx.keras.BackupAndRestore(folder), Dies()])
    assert begun == [0, 1, 2, 2, 3]
    assert history.epoch == [0, 1, 2, 3]
    assert absolute(folder).names() == []


def test_an_estimator_trains_and_evaluates(folder):
    def model() -> keras.Model:
        made = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        made.compile("sgd", "mse")
        return made

    def rows():
        return (np.ones((8, 2), "float32"), np.ones((8, 1), "float32"))

    estimator = rx.estimator.model_to_estimator(model(), model_dir=folder)
    estimator.train(rows, steps=3)
    assert estimator.latest_checkpoint().startswith(folder)
    assert estimator.evaluate(rows, steps=1)["global_step"] == 3
    assert list(rx.estimator.read_eval_metrics(estimator.eval_dir())) == [3]


def test_an_exported_function(folder):
    w = rx.Variable(3.0)
    path = rx.export(lambda x: w * x, f"{folder}/scale", jnp.zeros(2))
    assert rx.load_export(path)(jnp.ones(2)).tolist() == [3.0, 3.0]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_one_request_that_is_struck_fails_no_save(served, folder, fault):
    quick = StorePath(folder, StorePatience(all=30.0, each=0.5, first_pause=0.01, longest_pause=0.1))
    w = rx.Variable(jnp.zeros(4))
    manager = rx.CheckpointManager(quick, max_to_keep=1, async_=False, objects={"w": w})
    manager.save(0)
    _, proxy = served
    for at in (1, 3, 5):
        proxy.reset(at, fault)
        w.assign(w.value + 1)
        manager.save(at)
        assert proxy.struck
        proxy.reset()
        assert manager.all_steps() == [at]
        before = np.asarray(w)
        manager.restore()
        np.testing.assert_array_equal(w, before)


def saves_in_parts(url: str) -> list[float]:
    strategy = rx.FullyShardedStrategy(min_size=1)
    with strategy.scope():
        w = rx.Variable(jnp.arange(8.0))
    with rx.CheckpointManager(url, objects={"w": w}) as manager:
        manager.save(1)
    w.assign(jnp.zeros(8))
    manager.restore()
    return [float(each) for shard in w.value.addressable_shards for each in np.asarray(shard.data)]


def test_two_workers_write_their_parts(folder):
    results = rx.testing.run_workers(saves_in_parts, 2, url=folder)
    assert sorted(results[0] + results[1]) == list(range(8))
    assert CliRunner().invoke(app, ["ckpt", "verify", folder]).exit_code == 0
