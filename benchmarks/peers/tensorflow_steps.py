"""TensorFlow's CentralStorageStrategy and ParameterServerStrategy, their steps in `tf.function`.

The network is plain TensorFlow and the optimizer the one of `tf_keras` that updates a variable with one fused operation
(`legacy.Adam`), or the newer one. XLA refuses to compile the gradients (`jit_compile`): the variables are on
another device.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import problem
import tensorflow as tf
import tf_keras


def make_network() -> tf_keras.Sequential:
    """Returns the network with the problem's first weights."""
    layers = [tf_keras.layers.Dense(size, activation="relu") for size in problem.SIZES[1:-1]]
    first = tf_keras.Input(problem.SIZES[:1])
    model = tf_keras.Sequential([first, *layers, tf_keras.layers.Dense(problem.SIZES[-1])])
    model.set_weights(problem.flat_weights())
    return model


def make_optimizer(name: str) -> Any:
    """Returns Adam: `"legacy"` or `"new"`."""
    kind = {"legacy": tf_keras.optimizers.legacy.Adam, "new": tf_keras.optimizers.Adam}[name]
    return kind(problem.LEARNING_RATE, epsilon=problem.EPSILON)


def set_threads(intra: int) -> None:
    """Sets the threads of a kernel; 0: as many as there are cores."""
    tf.config.threading.set_intra_op_parallelism_threads(intra)


class Central:
    """A step under CentralStorageStrategy, on logical CPU devices of this process."""

    def __init__(self, devices: int, optimizer: str):
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * devices)
        strategy = tf.distribute.experimental.CentralStorageStrategy(
            [f"/cpu:{i}" for i in range(devices)], parameter_device="/cpu:0"
        )
        x, y = problem.make_batch(problem.ROWS)
        with strategy.scope():
            model, self._optimizer = make_network(), make_optimizer(optimizer)

        def replica_step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
            with tf.GradientTape() as tape:
                each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=model(x, training=True))
                loss = tf.reduce_sum(each) / problem.ROWS
            gradients = tape.gradient(loss, model.trainable_variables)
            self._optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        @tf.function
        def step(x: Any, y: Any) -> tf.Tensor:
            return strategy.reduce("SUM", strategy.run(replica_step, args=(x, y)), axis=None)

        rows = problem.ROWS // devices

        def part(array: Any) -> Any:
            return strategy.experimental_distribute_values_from_function(
                lambda context: tf.constant(array[context.replica_id_in_sync_group * rows :][:rows])
            )

        self._step, self._batch, self._loss = step, (part(x), part(y)), tf.zeros(())

    def __call__(self) -> None:
        self._loss = self._step(*self._batch)

    def wait(self) -> None:
        self._loss.numpy()

    def last(self) -> float:
        return float(self._loss.numpy())


def central(devices: int, optimizer: str = "legacy", intra: int = 0) -> Central:
    """Returns a step under CentralStorageStrategy."""
    set_threads(intra)
    return Central(devices, optimizer)


_SERVER = """
import json, sys
import tensorflow as tf
job, index, cluster, intra = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3]), int(sys.argv[4])
config = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=intra)
tf.distribute.Server(cluster, job_name=job, task_index=index, protocol="grpc", config=config).join()
"""


class Servers:
    """Asynchronous training with a coordinator in this process and a process for each worker and server."""

    def __init__(self, workers: int, servers: int, optimizer: str, intra: int):
        jobs = [("worker", i) for i in range(workers)] + [("ps", i) for i in range(servers)]
        opened = [socket.create_server(("127.0.0.1", 0)) for _ in jobs]
        cluster: dict[str, list[str]] = {"worker": [], "ps": []}
        for (job, _), port in zip(jobs, opened, strict=True):
            cluster[job].append(f"127.0.0.1:{port.getsockname()[1]}")
            port.close()
        self._processes = [
            subprocess.Popen([sys.executable, "-c", _SERVER, job, str(i), json.dumps(cluster), str(intra)])
            for job, i in jobs
        ]
        spec = tf.train.ClusterSpec(cluster)
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(spec, rpc_layer="grpc")
        strategy = tf.distribute.ParameterServerStrategy(resolver)
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        with strategy.scope():
            model, optimizer_ = make_network(), make_optimizer(optimizer)
        self._iterator = iter(self._coordinator.create_per_worker_dataset(self._dataset))

        def replica_step(batch: Any) -> tf.Tensor:
            x, y = batch
            with tf.GradientTape() as tape:
                each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=model(x, training=True))
                loss = tf.reduce_mean(each)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer_.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        @tf.function
        def step(iterator: Any) -> tf.Tensor:
            return strategy.run(replica_step, args=(next(iterator),))

        self._step, self._loss = step, None

    @staticmethod
    def _dataset() -> tf.data.Dataset:
        return tf.data.Dataset.from_tensors(problem.make_batch(problem.ROWS)).repeat()

    def __call__(self) -> None:
        self._loss = self._coordinator.schedule(self._step, args=(self._iterator,))

    def wait(self) -> None:
        self._coordinator.join()

    def last(self) -> float:
        assert self._loss is not None
        return float(self._loss.fetch())

    def end(self) -> None:
        """Ends the workers and servers."""
        for process in self._processes:
            process.kill()
            process.wait()


def servers(workers: int, servers: int, optimizer: str = "legacy", intra: int = 0) -> Servers:
    """Returns asynchronous training with ParameterServerStrategy."""
    set_threads(intra)
    return Servers(workers, servers, optimizer, intra)
