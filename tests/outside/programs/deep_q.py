"""Deep Q-learning on a tiny maze, with a replay memory and a target network.

After https://keras.io/examples/rl/deep_q_network_breakout/: the agent plays between steps, samples of its memory are
the batches, the target network is copied now and then. The custom loop is TensorFlow's.
"""

from __future__ import annotations

import keras
import numpy as np
from keras import layers, ops

import replicax as rx  # tf

SIZE, ACTIONS, BATCH, GAMMA = 4, 4, 32, 0.9
MOVES = np.array([[0, 1], [1, 0], [0, -1], [-1, 0]])
strategy = rx.MirroredStrategy()  # +
rng = np.random.default_rng(0)


def q_model():
    return keras.Sequential([keras.Input((2,)), layers.Dense(32, activation="tanh"), layers.Dense(ACTIONS)])


def move(position, action):
    """Takes one step in the maze; returns where it leads, the reward, and whether the goal is reached."""
    after = np.clip(position + MOVES[action], 0, SIZE - 1)
    done = bool((after == SIZE - 1).all())
    return after, 1.0 if done else -0.05, done


def play(model, memory, frames, epsilon):
    position = np.zeros(2)
    for _ in range(frames):
        greedy = int(np.argmax(ops.convert_to_numpy(model(position[None] / SIZE))[0]))
        action = int(rng.integers(ACTIONS)) if rng.random() < epsilon else greedy
        after, reward, done = move(position, action)
        memory.append((position / SIZE, action, reward, after / SIZE, float(done)))
        position = np.zeros(2) if done else after


def sample(memory):
    rows = [memory[i] for i in rng.integers(0, len(memory), min(BATCH, len(memory)))]
    state, action, reward, after, done = map(np.array, zip(*rows, strict=True))
    floats = [column.astype(keras.config.floatx()) for column in (state, reward, after, done)]
    return floats[0], action, *floats[1:]


def main():
    global rng
    rng = np.random.default_rng(0)
    with strategy.scope():  # +
        model, target = q_model(), q_model()
        optimizer = keras.optimizers.Adam(1e-2, clipnorm=1.0)
        huber = keras.losses.Huber(reduction="none")
    target.set_weights(model.get_weights())

    def train_step(state, action, reward, after, done):
        best = ops.max(target(after), axis=1)
        wanted = reward + GAMMA * (1 - done) * best

        def loss_fn():  # tf
            chosen = ops.sum(model(state) * ops.one_hot(action, ACTIONS), axis=1)
            # - return ops.mean(huber(wanted[:, None], chosen[:, None]))
            return rx.compute_average_loss(huber(wanted[:, None], chosen[:, None]))  # +

        loss, grads = rx.value_and_grad(loss_fn, model.trainable_variables)()  # tf
        optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))
        return loss

    # - step = rx.function(train_step)
    @rx.function  # +
    def step(*batch):  # +
        return strategy.reduce("sum", strategy.run(train_step, args=batch), axis=None)  # +

    memory, losses = [], []
    for round_ in range(12):
        play(model, memory, frames=20, epsilon=1.0 - round_ / 12)
        # - losses.append(step(*sample(memory)))
        (batch,) = strategy.distribute_dataset([sample(memory)])  # +
        losses.append(step(*batch))  # +
        if round_ % 4 == 3:
            target.set_weights(model.get_weights())
    return model.get_weights(), losses


if __name__ == "__main__":
    print(*main()[1], sep="\n")
