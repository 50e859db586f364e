"""REINFORCE on a tiny grid: walk to the right before time is up.

After https://keras.io/examples/rl/actor_critic_cartpole/ and https://github.com/google/flax/tree/main/examples/ppo: a
policy gradient with discounted returns and a baseline. Episodes are the rows of a batch; each has a random key of its
own, so that it is the same episode on any number of devices.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax

import replicax as rx  # +

EPISODES, LENGTH, GOAL, GAMMA = 48, 12, 4, 0.97
strategy = rx.MirroredStrategy()  # +
tx = optax.adam(3e-2)


def init_params(key):
    first, second = jax.random.split(key)
    return {
        "w1": jax.random.normal(first, (2, 16)) * 0.5,
        "b1": jnp.zeros(16),
        "w2": jax.random.normal(second, (16, 2)) * 0.1,
        "baseline": jnp.zeros(()),
    }


def log_policy(params, position, time):
    features = jnp.stack([position / GOAL, time / LENGTH])
    return jax.nn.log_softmax(jnp.tanh(features @ params["w1"] + params["b1"]) @ params["w2"])


def episode(params, key):
    """Plays one episode; returns the log-probabilities of its actions and its rewards."""

    def act(state, step_key):
        position, time = state
        log_probs = log_policy(params, position, time)
        action = jax.lax.stop_gradient(jax.random.categorical(step_key, log_probs))
        reward = jnp.where(position >= GOAL, 1.0, -0.1)
        moved = jnp.clip(position + 2.0 * action - 1.0, -GOAL, GOAL)
        return (moved, time + 1.0), (log_probs[action], reward)

    start = jnp.zeros(()), jnp.zeros(())
    return jax.lax.scan(act, start, jax.random.split(key, LENGTH))[1]


def loss_fn(params, keys):
    log_probs, rewards = jax.vmap(episode, in_axes=(None, 0))(params, keys)
    discounts = GAMMA ** jnp.arange(LENGTH)
    returns = jnp.cumsum((rewards * discounts)[:, ::-1], axis=1)[:, ::-1] / discounts
    advantage = jax.lax.stop_gradient(returns - params["baseline"])
    policy_loss = -jnp.sum(log_probs * advantage, axis=1)
    value_loss = jnp.mean(jnp.square(params["baseline"] - returns), axis=1)
    return jnp.sum(policy_loss + value_loss) / EPISODES


@jax.jit
def train_step(state, keys):
    params, opt_state = state
    loss, grads = jax.value_and_grad(loss_fn)(params, keys)
    updates, opt_state = tx.update(grads, opt_state, params)
    return (optax.apply_updates(params, updates), opt_state), loss


def main():
    params = init_params(jax.random.key(0))
    state = params, tx.init(params)
    sizes = [EPISODES] * 11 + [20]  # fewer episodes at the end
    keys = [jax.random.split(jax.random.PRNGKey(seed), size) for seed, size in enumerate(sizes)]
    state = strategy.replicate(state)  # +
    losses = []
    # - for batch in keys:
    for batch in strategy.distribute_dataset(keys):  # +
        # - state, loss = train_step(state, batch)
        state, loss = strategy.run(train_step, args=(state, batch))  # +
        # - losses.append(loss)
        losses.append(strategy.reduce("sum", loss, axis=None))  # +
    return state[0], losses


if __name__ == "__main__":
    print(*main()[1], sep="\n")
