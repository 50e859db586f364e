"""A whole training in plain JAX: epochs, checkpoints with the place in the data, evaluation; killed, it goes on.

python examples/resumable_loop.py run --kill 20; python examples/resumable_loop.py run

The second command continues at the newest checkpoint, in the middle of an epoch, and ends with the numbers of a
training that nobody killed. It may have other devices than the first. On two workers:

    replicax run --workers 2 --restarts 1 examples/resumable_loop.py run2 --kill 20
"""

from __future__ import annotations

import argparse
import os
import signal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

import replicax as rx

BATCH, EPOCHS, SAVE_EVERY = 128, 4, 8
optimizer = optax.adam(3e-3)


def logits_of(params, images):
    return jnp.tanh(images @ params["w1"] + params["b1"]) @ params["w2"] + params["b2"]


def loss_fn(params, images, labels):
    losses = optax.softmax_cross_entropy_with_integer_labels(logits_of(params, images), labels)
    return rx.compute_average_loss(losses, global_batch_size=BATCH)


def train_step(state, batch):  # one replica's view
    loss, gradients = jax.value_and_grad(loss_fn)(state["params"], *batch)
    updates, moments = optimizer.update(gradients, state["moments"], state["params"])
    state = {"params": optax.apply_updates(state["params"], updates), "moments": moments, "step": state["step"] + 1}
    return state, loss


def count_correct(params, batch):
    images, labels = batch
    return jnp.sum(logits_of(params, images).argmax(axis=1) == labels)


def first_state():
    one, two = jax.random.split(jax.random.key(0))
    params = {
        "w1": jax.random.normal(one, (64, 100)) / 8,
        "b1": jnp.zeros(100),
        "w2": jax.random.normal(two, (100, 10)) / 10,
        "b2": jnp.zeros(10),
    }
    return {"params": params, "moments": optimizer.init(params), "step": jnp.int32(0)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", help="of the checkpoints, which all workers see")
    parser.add_argument("--kill", type=int, help="kill a training that began anew, after so many steps")
    args = parser.parse_args()

    strategy = rx.MultiWorkerMirroredStrategy()  # first of all; without a launcher, the devices of this process
    images, labels = load_digits(return_X_y=True)
    images, labels = (images / 16).astype("float32"), labels.astype("int32")
    train, test = np.split(np.random.default_rng(0).permutation(len(labels)), [4 * len(labels) // 5])
    rows = rx.data.Rows(list(zip(images[train], labels[train], strict=True))).shuffle(seed=1)  # anew in each epoch
    dataset = strategy.distribute_dataset(rows.batch(BATCH))
    test_batches = strategy.distribute_dataset((images[test], labels[test]), batch_size=BATCH)

    checkpoint = rx.Checkpoint(state=first_state(), data=dataset)
    with rx.CheckpointManager(checkpoint, args.directory, max_to_keep=2, save_interval_steps=SAVE_EVERY) as manager:
        restored = manager.restore_or_initialize()  # the step, or None
        if restored is not None and strategy.is_chief:
            print(f"continues after step {restored}")
        state = strategy.replicate(checkpoint.objects["state"])
        for epoch in range(dataset.get_state()["pass"], EPOCHS):
            for batch in dataset:  # from the place where the checkpoint was saved
                state, loss = strategy.run(train_step, args=(state, batch))
                loss, step = strategy.reduce("sum", loss, axis=None), int(state["step"])
                manager.save(step, state=state)  # every 8th step, in the background
                if strategy.is_chief:
                    print(f"epoch {epoch}, step {step}: loss {loss:.6f}", flush=True)
                if step == args.kill and restored is None:
                    os.kill(os.getpid(), signal.SIGKILL)

    results = [strategy.run(count_correct, args=(state["params"], batch)) for batch in test_batches]
    correct = sum(int(strategy.reduce("sum", result, axis=None)) for result in results)
    if strategy.is_chief:
        print(f"test accuracy {correct / len(test):.3f}")


if __name__ == "__main__":
    main()
