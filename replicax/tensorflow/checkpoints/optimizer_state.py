"""Matching an optimizer's state: its slots, its counter, its learning rate, whatever version of TensorFlow wrote it."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from replicax.compat.keras import slots_of, trainable_variables_of
from replicax.tensorflow.checkpoints.matches import Match, Matches
from replicax.tensorflow.checkpoints.slot_names import HYPERPARAMETERS, REGULARIZATION, SLOTS
from replicax.tensorflow.checkpoints.targets import Target

if TYPE_CHECKING:
    import keras

_CLOSE = 1e-5  # How far a hyperparameter may be from the one here: TensorFlow keeps them in float32.
_WARM = 2000  # Steps after which the warm-up of Nadam's momentum has no effect in float64.
_LAST_COUNT = 2**31 - 1


class OptimizerState:
    """An optimizer here, and what is known of it in the checkpoint."""

    def __init__(self, optimizer: keras.optimizers.Optimizer, matches: Matches):
        import keras

        is_scaling = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
        self.scaling = optimizer if is_scaling else None
        self.optimizer = optimizer.inner_optimizer if is_scaling else optimizer  # the one that updates
        self.matches, self.is_tf1 = matches, False  # whether TensorFlow 1's class wrote it, as far as that matters
        self._slots = slots_of(self.optimizer) if self.optimizer.built else {}
        self._index = {id(v): i for i, v in enumerate(trainable_variables_of(self.optimizer))} if self._slots else {}

    @property
    def kind(self) -> str:
        """The name of its class in Keras."""
        names = [each.__name__ for each in type(self.optimizer).__mro__]
        return next((name for name in names if name in SLOTS), names[0])

    @property
    def slot_names(self) -> Mapping[str, str]:
        """Keras 3's lists by TensorFlow's names of slots."""
        return SLOTS.get(self.kind, {})

    @property
    def has_no_momentum(self) -> bool:
        """Whether it could have momentum, and has none: then Keras 3 keeps no slots for it, and Keras 2 did."""
        return self.kind in ("SGD", "RMSprop") and not self.optimizer.momentum

    def slot(self, variable: object, name: str, tensor: str) -> None:
        """Matches a slot of a variable."""
        list_name = self.slot_names.get(name)
        if list_name is None:
            return
        index, variables = self._index.get(id(variable)), self._slots.get(list_name)
        if name == "momentum" and self.has_no_momentum:
            self.matches.ignore(tensor, "the optimizer has no momentum")
        elif index is not None and variables is not None:
            self.in_list(list_name, index, tensor)

    def in_list(self, list_name: str, index: int, tensor: str) -> None:
        """Matches the slot at a place in one of Keras 3's lists."""
        variables = self._slots.get(list_name, [])
        target = self.matches.targets.of(variables[index]) if index < len(variables) else None
        if target is not None:
            self.matches.add(Match(target, tensor, scale=self._scale(list_name)))

    def list_names(self) -> Iterable[str]:
        """Returns the names of the lists that it has."""
        return self._slots

    def shapes(self, list_name: str) -> list[tuple[int, ...]]:
        return [tuple(variable.shape) if variable is not None else () for variable in self._slots[list_name]]

    def variable_names(self) -> list[str]:
        """Returns the names of the variables that it updates, such as `"kernel"`, in their order."""
        return [variable.name for variable in trainable_variables_of(self.optimizer)]

    def index_of(self, variable: object) -> int | None:
        """Returns the index of a variable among those that it updates."""
        return self._index.get(id(variable))

    def _scale(self, list_name: str) -> float | None:
        """TensorFlow 1's momentum is a sum of gradients, Keras's one of updates: it has the learning rate in it."""
        if not self.is_tf1 or self.kind != "SGD" or list_name != "momentums":
            return None
        if self.rate is None:
            self.matches.problem(
                "The momentum that TensorFlow 1 saved is a sum of gradients, and Keras 3's one of updates, which have "
                "the learning rate in them: it cannot be converted for an optimizer whose rate follows a schedule."
            )
            return None
        return -float(np.asarray(self.optimizer.learning_rate))

    def counter(self, tensor: str) -> None:
        """Matches the counter of steps, which TensorFlow keeps in 64 bits and Keras 3 in 32."""
        target = self._own(self.optimizer.iterations)
        info = self.matches.checkpoint.tensors.get(tensor)
        if target is None or info is None or not self.matches.is_free(target):
            return
        count = self.matches.scalar(tensor)
        if count != int(count) or not 0 <= count <= _LAST_COUNT:
            self.matches.problem(
                f"{self._shown(tensor)!r} in the checkpoint is {count:.0f}, which is no count of steps."
            )
            return
        self.matches.add(Match(target, tensor, value=np.asarray(int(count), target.dtype)))

    def power(self, tensor: str, base: float) -> None:
        """Matches the counter of steps where TensorFlow 1 keeps a power instead: `base ** (steps + 1)`."""
        target, power = self._own(self.optimizer.iterations), self.matches.scalar(tensor)
        self.matches.ignore(tensor, "the count of steps says it")
        if target is None or not self.matches.is_free(target):
            return
        if not np.finfo(np.float32).tiny < power <= base < 1:
            return  # So many steps that it has become zero, or no power.
        steps = math.log(power) / math.log(base) - 1
        if abs(steps - round(steps)) < max(0.01, 1e-4 * steps):
            self.matches.ignored.pop(tensor, None)
            self.matches.add(Match(target, tensor, value=np.asarray(round(steps), target.dtype)))
            return
        self.matches.problem(
            f"{self._shown(tensor)!r} in the checkpoint is {power:.8g}, which is no power of {base}: the optimizer "
            "here has other hyperparameters than the one that was saved."
        )

    def learning_rate(self, tensor: str) -> None:
        """Matches the learning rate; a schedule decides for itself."""
        target = self.rate
        if target is None:
            self.matches.ignore(tensor, "the optimizer has a schedule")
        else:
            self.matches.add(Match(target, tensor))

    def hyperparameter(self, name: str, tensor: str) -> None:
        """Compares a hyperparameter, which is no variable in Keras 3, with the one here."""
        if name == "decay" and self.kind == "Nadam":
            self.matches.doubt(
                f"{self._shown(tensor)!r} is in the checkpoint: Keras 2's legacy Nadam computes its momentum with it, "
                "Keras 3's otherwise, so that the training does not go on as it was. Restore the model alone."
            )
            self.matches.ignore(tensor, "Keras 3 has no such number")
            return
        if name == "decay":
            value = self.matches.scalar(tensor)
            self.matches.ignore(tensor, "Keras 3 has schedules instead")
            if value and self.rate is not None:
                self.matches.doubt(
                    f"{self._shown(tensor)!r} in the checkpoint is {value:.6g}: its learning rate decays, and the one "
                    "here does not. Give the optimizer learning_rate=keras.optimizers.schedules.InverseTimeDecay("
                    f"rate, 1, {value:.6g})."
                )
            return
        here = getattr(self.optimizer, REGULARIZATION.get(name, name), None)
        if name not in (*HYPERPARAMETERS, *REGULARIZATION) or not isinstance(here, (int, float)):
            return
        value = self.matches.scalar(tensor)
        self.matches.ignore(tensor, "a hyperparameter, the same here")
        if abs(value - here) > _CLOSE * max(abs(here), abs(value)):
            self.matches.doubt(
                f"{self._shown(tensor)!r} is {value:.6g} in the checkpoint, and the optimizer here has "
                f"{name}={here:.6g}."
            )

    def decay_of_weights(self, saved: Collection[str]) -> None:
        """Compares whether weights decay, of which checkpoints say nothing but the class: AdamW's do, Adam's do not."""
        # `saved` has the classes that the optimizer in the checkpoint may have; it is empty if nothing says it.
        decay = getattr(self.optimizer, "weight_decay", None) or 0.0
        if self.kind not in ("Adam", "AdamW") or not saved or ("AdamW" in saved) == bool(decay):
            return
        if "AdamW" in saved:
            self.matches.doubt(
                "The optimizer in the checkpoint is AdamW, whose weights decay, and the one here has no weight_decay."
            )
        elif self.kind == "AdamW" and "Adam" in saved:
            self.matches.doubt(
                "The optimizer in the checkpoint is Adam, and the one here is AdamW with weight_decay="
                f"{decay:.6g}. If that training had a weight decay too, make the same here: Adam(weight_decay="
                f"{decay:.6g}); otherwise Adam, or AdamW(weight_decay=0)."
            )

    def loss_scale(self, scale: str | None, steps: str | None) -> None:
        """Matches the scale of the loss and the steps since it last changed; one that scales nothing needs neither."""
        if self.scaling is None:
            for name in filter(None, (scale, steps)):
                self.matches.ignore(name, "the optimizer here does not scale the loss")
        elif self.scaling.built:
            for variable, tensor in ((self.scaling.dynamic_scale, scale), (self.scaling.step_counter, steps)):
                target = self._own(variable)
                if tensor is not None and target is not None:
                    value = np.asarray(self.matches.scalar(tensor), target.dtype)
                    self.matches.add(Match(target, tensor, value=value))

    def keep_rest(self) -> None:
        """Notes what TensorFlow does not keep of such an optimizer, so that it stays as it is."""
        rest = [self.optimizer.iterations, *list(self.optimizer.variables)[1:2]]
        for variable in rest:
            target = self._own(variable)
            name = "" if target is None else target.name
            if name.endswith("learning_rate") or (self.is_tf1 and name.endswith("iteration")):
                self.matches.keep(target, "the checkpoint has none")
        self._product()
        if self.scaling is not None:
            for variable in self.scaling.variables:
                if id(variable) not in {id(each) for each in self.optimizer.variables}:
                    self.matches.keep(self._own(variable), "the checkpoint has no scale of the loss")

    def _product(self) -> None:
        """Computes Nadam's running product of momenta, which Keras 2 does not save in HDF5, from the count of steps."""
        target = self._own(self.optimizer.variables[-1]) if self.kind == "Nadam" and self.optimizer.built else None
        counter = self._own(self.optimizer.iterations)
        count = self.matches.found.get(counter.name) if counter is not None else None
        if target is None or target.shape or count is None or count.value is None or not self.matches.is_free(target):
            return
        steps, base = int(count.value), float(self.optimizer.beta_1)
        first = np.arange(1, min(steps, _WARM) + 1)  # Later factors are `beta_1` itself.
        product = base**steps * float(np.prod(1 - 0.5 * 0.96**first))
        if self.matches.add(Match(target, "u_product", value=np.asarray(product, target.dtype))):
            self.matches.notes.append(f"{target.name!r} was computed from the count of steps: the checkpoint lacks it.")

    def _shown(self, tensor: str) -> str:
        return self.matches.shown(tensor)

    @property
    def rate(self) -> Target | None:
        """The learning rate; None if the optimizer has a schedule."""
        rates = (self._own(variable) for variable in list(self.optimizer.variables)[1:2])
        return next((rate for rate in rates if rate is not None and rate.name.endswith("learning_rate")), None)

    def _own(self, variable: object) -> Target | None:
        return None if variable is None else self.matches.targets.of(variable)
