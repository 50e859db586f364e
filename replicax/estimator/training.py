"""One call of `Estimator.train`: the loop, its checkpoints and its hooks."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator, Sequence

from replicax.checkpoint import CheckpointManager
from replicax.estimator.agreed_action import together
from replicax.estimator.basic_hooks import (
    LoggingTensorHook,
    NanTensorHook,
    StepCounterHook,
    SummarySaverHook,
    steps_left,
)
from replicax.estimator.built_model import BuiltModel
from replicax.estimator.checkpoint_saver import CheckpointSaverHook
from replicax.estimator.hook_list import Hooks
from replicax.estimator.hooks import HookContext
from replicax.estimator.loops import run_steps
from replicax.estimator.run_config import RunConfig
from replicax.estimator.saving import Saving
from replicax.estimator.scalars import ScalarWriter
from replicax.estimator.scheduled import run_scheduled
from replicax.estimator.steps import ModelSteps
from replicax.program import function
from replicax.typing import PyTree


@dataclasses.dataclass
class Training:
    """A training of a built model, from where its variables are."""

    model: BuiltModel  # with the values of the checkpoint that the training goes on from
    config: RunConfig
    model_dir: str
    manager: CheckpointManager
    hooks: Sequence[object]  # the user's, Keras callbacks among them
    listeners: Sequence[object]  # the user's

    def run(self, batches: Iterator[PyTree]) -> HookContext:
        """Trains until a hook asks to stop or the batches end; the last step is saved."""
        spec, strategy, is_chief = self.model.spec, self.model.strategy, self.config.is_chief
        context = HookContext(
            self.model.mode, self.model_dir, int(self.model.global_step.numpy()), is_chief, spec.metrics
        )
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.manager)
            scalars = stack.enter_context(ScalarWriter(self.model_dir, is_chief))
            given = self._given(is_chief)
            hooks = Hooks([*given, *self._reporters(scalars, is_chief)])
            nans = [hook for hook in given if isinstance(hook, NanTensorHook)]
            saving = Saving(
                self.manager,
                [hook for hook in given if isinstance(hook, CheckpointSaverHook)],
                self.listeners,
                context,
                stack.enter_context(together(strategy)),
                lambda: _check(nans, context),
            )
            context.save_with(saving.save)
            hooks.call("begin", context)
            saving.begin()
            limit = steps_left(given, context)
            steps = ModelSteps(self.model)
            if strategy.is_asynchronous:
                run_scheduled(batches, steps, hooks, context, limit, saving)
            else:
                stop = stack.enter_context(together(strategy))
                train = function(steps.train)
                run_steps(
                    itertools.islice(batches, limit), train, hooks, context, stop, counts=True, after=saving.save_if_due
                )
            hooks.call("end", context)
            saving.end()
        return context

    def _given(self, is_chief: bool) -> list[object]:
        """Returns the user's hooks, with those that each training has."""
        spec = self.model.spec
        given = [*self.hooks, *(spec.training_chief_hooks or () if is_chief else ()), *(spec.training_hooks or ())]
        if not any(isinstance(hook, NanTensorHook) for hook in given):
            given.insert(0, NanTensorHook())
        if not any(isinstance(hook, CheckpointSaverHook) for hook in given):
            given.append(
                CheckpointSaverHook(self.config.save_checkpoints_steps, self.config.save_checkpoints_secs or None)
            )
        return given

    def _reporters(self, scalars: ScalarWriter, is_chief: bool) -> list[object]:
        reporters: list[object] = []
        every = self.config.log_step_count_steps
        if every and is_chief:
            reporters += [LoggingTensorHook(every_n_iter=every), StepCounterHook(every, write=scalars.write)]
        if self.config.save_summary_steps and is_chief:
            reporters.append(SummarySaverHook(self.config.save_summary_steps, scalars.write))
        return reporters


def _check(nans: Sequence[NanTensorHook], context: HookContext) -> None:
    for nan in nans:
        nan.check(context)
