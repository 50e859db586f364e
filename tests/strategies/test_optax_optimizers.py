"""Every optimizer of optax and of its contributors, in `strategy.run`, against plain optax on the whole batch."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest

import replicax as rx

ROWS, STEPS = 12, 3
#: Name to constructor. Gradients of zero must not decide, so those that divide by a gradient's size have a large eps.
PLAIN = {
    "adabelief": lambda: optax.adabelief(1e-2, eps=1e-3),
    "adadelta": lambda: optax.adadelta(1.0, eps=1e-3),
    "adafactor": lambda: optax.adafactor(1e-2, min_dim_size_to_factor=2),
    "adagrad": lambda: optax.adagrad(0.1, eps=1e-3),
    "adam": lambda: optax.adam(1e-2, eps=1e-3),
    "adamax": lambda: optax.adamax(1e-2, eps=1e-3),
    "adamaxw": lambda: optax.adamaxw(1e-2, eps=1e-3),
    "adamw": lambda: optax.adamw(1e-2, eps=1e-3),
    "adan": lambda: optax.adan(1e-2, eps=1e-3),
    "amsgrad": lambda: optax.amsgrad(1e-2, eps=1e-3),
    "fromage": lambda: optax.fromage(1e-2),
    "lamb": lambda: optax.lamb(1e-2, eps=1e-3),
    "lars": lambda: optax.lars(1e-1),
    "lion": lambda: optax.lion(1e-3),
    "nadam": lambda: optax.nadam(1e-2, eps=1e-3),
    "nadamw": lambda: optax.nadamw(1e-2, eps=1e-3),
    "noisy_sgd": lambda: optax.noisy_sgd(0.1, key=7),
    "novograd": lambda: optax.novograd(1e-2),
    "optimistic_adam_v2": lambda: optax.optimistic_adam_v2(1e-2, eps=1e-3),
    "optimistic_gradient_descent": lambda: optax.optimistic_gradient_descent(0.1),
    "radam": lambda: optax.radam(1e-2, eps=1e-3),
    "rmsprop": lambda: optax.rmsprop(1e-2, eps=1e-3),
    "rprop": lambda: optax.rprop(1e-2),
    "sgd": lambda: optax.sgd(0.1, momentum=0.9, nesterov=True),
    "sign_sgd": lambda: optax.sign_sgd(1e-2),
    "signum": lambda: optax.signum(1e-2),
    "sm3": lambda: optax.sm3(0.1),
    "yogi": lambda: optax.yogi(1e-2),
    "contrib.acprop": lambda: optax.contrib.acprop(1e-2, eps=1e-3),
    "contrib.ademamix": lambda: optax.contrib.ademamix(1e-2, eps=1e-3),
    "contrib.adopt": lambda: optax.contrib.adopt(1e-2, eps=1e-3),
    "contrib.cocob": lambda: optax.contrib.cocob(),
    "contrib.dadapt_adamw": lambda: optax.contrib.dadapt_adamw(1.0, eps=1e-3),
    "contrib.dog": lambda: optax.contrib.dog(1.0),
    "contrib.dowg": lambda: optax.contrib.dowg(1.0),
    "contrib.galore": lambda: optax.contrib.galore(1e-2, rank=2),
    "contrib.madgrad": lambda: optax.contrib.madgrad(1e-2, eps=1e-3),
    "contrib.mechanize": lambda: optax.contrib.mechanize(optax.sgd(0.1)),
    "contrib.muon": lambda: optax.contrib.muon(1e-2, adam_eps_root=1e-3),
    "contrib.prodigy": lambda: optax.contrib.prodigy(1.0, eps=1e-3),
    "contrib.sam": lambda: optax.contrib.sam(optax.sgd(0.1), optax.sgd(0.05)),
    "contrib.schedule_free": lambda: optax.contrib.schedule_free(optax.sgd(0.1), 0.1),
    "contrib.schedule_free_adamw": lambda: optax.contrib.schedule_free_adamw(1e-2, eps=1e-3),
    "contrib.schedule_free_sgd": lambda: optax.contrib.schedule_free_sgd(0.1),
    "contrib.simplified_ademamix": lambda: optax.contrib.simplified_ademamix(1e-3, eps=1e-3),
    "contrib.split_real_and_imaginary": lambda: optax.contrib.split_real_and_imaginary(optax.adam(1e-2, eps=1e-3)),
    "apply_if_finite": lambda: optax.apply_if_finite(optax.sgd(0.1), 2),
    "chain": lambda: optax.chain(optax.clip_by_global_norm(0.1), optax.add_noise(0.1, 0.5, key=3), optax.sgd(0.1)),
    "conditionally_mask": lambda: optax.conditionally_mask(optax.sgd(0.1), lambda step: step % 2 == 0),
    "inject_hyperparams": lambda: optax.inject_hyperparams(optax.adam)(
        learning_rate=optax.cosine_decay_schedule(0.1, 5), eps=1e-3
    ),
    "lookahead": lambda: optax.chain(optax.ema(0.9), optax.centralize(), optax.scale_by_trust_ratio(), optax.sgd(0.1)),
    "masked": lambda: optax.masked(optax.sgd(0.1), {"w": True, "b": False}),
    "MultiSteps": lambda: optax.MultiSteps(optax.adam(1e-2, eps=1e-3), 2),
    "partition": lambda: optax.partition({"a": optax.sgd(0.1), "b": optax.adam(0.1, eps=1e-3)}, {"w": "a", "b": "b"}),
}
#: Those that take the loss, which is that of all replicas together.
OF_VALUES = {
    "polyak_sgd": lambda: optax.polyak_sgd(1.0),
    "contrib.momo": lambda: optax.contrib.momo(0.1),
    "contrib.momo_adam": lambda: optax.contrib.momo_adam(1e-2, eps=1e-3),
    "contrib.reduce_on_plateau": lambda: optax.chain(optax.sgd(0.1), optax.contrib.reduce_on_plateau(patience=1)),
}
#: Those that evaluate the loss themselves.
OF_LOSSES = {
    "lbfgs": lambda: optax.lbfgs(),
    "backtracking": lambda: optax.chain(optax.sgd(1.0), optax.scale_by_backtracking_linesearch(10)),
    "contrib.sam, opaque": lambda: optax.contrib.sam(optax.sgd(0.1), optax.sgd(0.05), opaque_mode=True),
    "contrib.sophia": lambda: optax.contrib.sophia(1e-2),
    "contrib.hutchinson": lambda: optax.chain(
        optax.contrib.hutchinson_estimator_diag_hessian(jax.random.key(1)), optax.sgd(0.1)
    ),
}
ALL = PLAIN | OF_VALUES | OF_LOSSES
#: One of each kind of state, and those that were wrong or refused once.
USUAL = ("adamw", "contrib.schedule_free", "contrib.sam", "contrib.momo", "lbfgs", "contrib.muon", "MultiSteps")


def _step(name, tx, row_losses, average, total):
    """Returns the step of one device, or of one replica: `average` and `total` are of all rows."""

    def loss_fn(params, x, y):
        return average(row_losses(params, x, y))

    def step(state, batch):
        params, opt_state = state
        loss, grads = jax.value_and_grad(loss_fn)(params, *batch)

        def whole(params, *_):
            return total(loss_fn(params, *batch))

        more = {}
        if name in OF_VALUES:
            more = {"value": total(loss)}
        elif name in OF_LOSSES:
            more = {
                "lbfgs": lambda: {"value": total(loss), "grad": grads, "value_fn": whole},
                "backtracking": lambda: {"value": total(loss), "grad": grads, "value_fn": whole},
                "contrib.sam, opaque": lambda: {"grad_fn": lambda params, _: jax.grad(loss_fn)(params, *batch)},
            }.get(name, lambda: {"obj_fn": whole})()
        updates, opt_state = tx.update(grads, opt_state, params, **more)
        return (optax.apply_updates(params, updates), opt_state), loss

    return step


def _compare(name, strategy):
    rng = np.random.default_rng(0)
    batches = [
        (rng.normal(size=(n, 8)).astype("float32"), rng.normal(size=(n, 4)).astype("float32"))
        for n in (ROWS, 6, ROWS)[:STEPS]
    ]
    params = {"w": jnp.asarray(rng.normal(size=(8, 4)) / 3, jnp.float32), "b": jnp.full(4, 0.1)}
    tx = ALL[name]()
    state = params, tx.init(params)

    def row_losses(params, x, y):
        return jnp.sum(jnp.square(jnp.tanh(x @ params["w"] + params["b"]) - y), axis=-1)

    plain = jax.jit(_step(name, tx, row_losses, jnp.mean, lambda loss: loss))
    expected = state
    for batch in batches:
        expected, _ = plain(expected, batch)

    ours = _step(name, tx, row_losses, rx.compute_average_loss, lambda loss: jax.lax.psum(loss, "replica"))
    found = strategy.replicate(state)
    for batch in strategy.distribute_dataset(batches):
        found, _ = strategy.run(ours, args=(found, batch))
    for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(found), strict=True):
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        a, b = np.asarray(a), np.asarray(b)
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(b, a, rtol=1e-5, atol=2e-5 * max(1e-2, np.max(np.abs(a), initial=0)))


@pytest.mark.daily(3)
@pytest.mark.parametrize("name", USUAL)
def test_an_optimizer_of_optax_on_three_replicas_is_that_of_one_device(name):
    _compare(name, rx.MirroredStrategy(["cpu:0", "cpu:1", "cpu:2"]))


@pytest.mark.nightly
@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("replicas", [2, 3])
def test_all_optimizers_of_optax_are_those_of_one_device(name, replicas):
    _compare(name, rx.MirroredStrategy([f"cpu:{i}" for i in range(replicas)]))


@pytest.mark.nightly
@pytest.mark.parametrize("name", ALL)
def test_all_optimizers_of_optax_with_sharded_state(name):
    _compare(name, rx.FullyShardedStrategy(["cpu:0", "cpu:1"], min_size=8))


def test_no_optimizer_of_optax_is_left_out():
    known = {name.removeprefix("contrib.") for name in ALL}
    # They are of single rows' gradients, which are each replica's own; or the older form of another one.
    left_out = {"dpsgd", "optimistic_adam"}
    assert (_optimizers(optax) | _optimizers(optax.contrib)) - known - left_out == set()


def _optimizers(module):
    functions = ((name, getattr(module, name)) for name in dir(module) if not name.startswith(("scale_by", "_")))
    return {
        name
        for name, each in functions
        if inspect.isfunction(each) and "learning_rate" in inspect.signature(each).parameters
    }
