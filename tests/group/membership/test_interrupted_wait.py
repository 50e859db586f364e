"""Breaking off the wait of the main thread for a program that does not end."""

import threading

import jax
import jax.numpy as jnp
import pytest

from replicax.group.membership.interrupted_wait import WaitInterruptedError, WaitInterrupter


def test_a_wait_is_broken_off_and_the_next_one_is_not():
    breaker = WaitInterrupter()
    slow = jax.jit(lambda x: jax.lax.fori_loop(0, 1500, lambda _, y: jnp.tanh(y @ x), x))
    value = slow.lower(jnp.ones((400, 400))).compile()(jnp.ones((400, 400)))
    over, stop = threading.Event(), threading.Event()

    def break_off():
        while not stop.wait(0.01):
            if over.is_set():
                return
            breaker.break_off()

    thread = threading.Thread(target=break_off)
    thread.start()
    try:
        with pytest.raises(WaitInterruptedError, match="a worker was lost"):
            breaker.wait(value)
        over.set()
    finally:
        stop.set()
        thread.join()
    breaker.break_off()  # Nothing waits.
    breaker.wait(value)
    assert value.is_ready()
