"""The loop over the batches, which calls the hooks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import jax

from replicax.estimator.agreed_action import Together
from replicax.estimator.hook_list import Hooks
from replicax.estimator.hooks import HookContext
from replicax.typing import PyTree


def run_steps(
    batches: Iterator[PyTree],
    step: Callable[[PyTree], Mapping[str, jax.Array]],
    hooks: Hooks,
    context: HookContext,
    stop: Together,
    counts: bool = False,
    after: Callable[[], None] = lambda: None,
) -> None:
    """Runs a step for each batch until a hook asks to stop, or there are no more."""
    if context.stop_requested:
        return
    for batch in batches:
        hooks.call("before_step", context)
        context.note_step(context.step + int(counts), step(batch))
        hooks.call("after_step", context)
        after()
        if context.stop_requested:
            stop.ask()
        if stop.check():
            return
