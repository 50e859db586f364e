"""The result of matching: which target gets which tensor, what is left on either side, and what is wrong."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from replicax.checkpoint.reading import rank_of_kind
from replicax.errors import CheckpointError
from replicax.tensorflow.checkpoints.reader import TensorFlowCheckpoint
from replicax.tensorflow.checkpoints.targets import Target, Targets

_SHOWN = 50  # Names that an error lists.


@dataclasses.dataclass(frozen=True)
class Match:
    """A target and where its value comes from."""

    target: Target
    tensor: str  # its name
    scale: float | None = None  # a factor for the tensor's values
    value: np.ndarray | None = None  # computed, in place of the values of the tensor
    by_order: bool = False  # whether only the place in an order, and the shape, say that they belong together
    full_name: str = ""  # the variable's name in TensorFlow, if the checkpoint has it


class Matches:
    """All that is known so far of which target gets which tensor."""

    def __init__(self, checkpoint: TensorFlowCheckpoint, targets: Targets):
        self.checkpoint, self.targets = checkpoint, targets
        self.found: dict[str, Match] = {}  # by the names of the targets
        self.used: set[str] = set()  # tensors that have a target
        self.ignored: dict[str, str] = {}  # tensors that need no target, with the reason
        self.spare: dict[str, str] = {}  # tensors that are left out unless a target needs them, with the reason
        self.kept: dict[str, str] = {}  # targets that keep their value, with the reason
        self.notes: list[str] = []  # sentences for the user, about what was restored
        self.problems: list[str] = []  # sentences: what makes any restore impossible
        self.doubts: list[str] = []  # sentences: what makes a strict restore impossible

    def add(self, match: Match) -> bool:
        """Notes a match, if the shapes and dtypes allow it and nothing contradicts it; returns whether it is new."""
        target, before = match.target, self.found.get(match.target.name)
        if match.tensor in self.ignored or target.name in self.kept:
            return False
        if before is not None:
            if before.tensor != match.tensor:
                self.problem(
                    f"{target.name!r} could be {self.shown(before.tensor)!r} or {self.shown(match.tensor)!r} in the "
                    "checkpoint."
                )
            return False
        if match.tensor in self.used:
            other = next(each.target.name for each in self.found.values() if each.tensor == match.tensor)
            self.problem(f"{self.shown(match.tensor)!r} in the checkpoint could be {other!r} or {target.name!r}.")
            return False
        wrong = self._misfit(match)
        if wrong:
            self.problem(wrong)
        self.found[target.name] = match
        self.used.add(match.tensor)
        return True

    def problem(self, sentence: str) -> None:
        """Notes what makes a restore impossible."""
        if sentence not in self.problems:
            self.problems.append(sentence)

    def doubt(self, sentence: str) -> None:
        """Notes what a strict restore does not accept."""
        if sentence not in self.doubts:
            self.doubts.append(sentence)

    def ignore(self, tensor: str, why: str) -> None:
        """Notes that a tensor needs no target."""
        if tensor in self.checkpoint.tensors:
            self.ignored.setdefault(tensor, why)

    def ignore_spare(self) -> None:
        """Leaves out the spare tensors that no target needed."""
        for tensor, why in self.spare.items():
            if tensor not in self.used:
                self.ignore(tensor, why)

    def keep(self, target: Target | None, why: str) -> None:
        """Notes that a target keeps its value."""
        if target is not None and target.name not in self.found:
            self.kept.setdefault(target.name, why)

    def is_open(self, tensor: str) -> bool:
        """Returns whether a tensor still looks for its target."""
        return tensor not in self.used and tensor not in self.ignored

    def is_free(self, target: Target) -> bool:
        """Returns whether a target still looks for its tensor."""
        return target.name not in self.found and target.name not in self.kept

    @property
    def unused(self) -> list[str]:
        """The tensors that have no target."""
        return [name for name in self.checkpoint.tensors if self.is_open(name)]

    @property
    def unmatched(self) -> list[str]:
        """The targets that have no tensor."""
        return [target.name for target in self.targets.all.values() if self.is_free(target)]

    def shown(self, tensor: str) -> str:
        """Returns a tensor's name as messages and mappings have it."""
        return self.checkpoint.shown(tensor)

    def shape(self, tensor: str) -> tuple[int, ...]:
        return self.checkpoint.tensors[tensor].shape

    def scalar(self, tensor: str) -> float:
        """Returns the value of a tensor with one value."""
        info = self.checkpoint.tensors[tensor]
        if info.shape != () or info.dtype is None or info.dtype.kind not in "biuf":
            raise CheckpointError(f"{self.shown(tensor)!r} in {self.checkpoint.path} should be one number, is {info}.")
        return float(self.checkpoint.read(tensor))

    def check(self, strict: bool, is_final: bool = True) -> None:
        """Checks that nothing is wrong and, if `strict`, that nothing is left on either side."""
        unused = self.unused if is_final else []  # An object that is not built yet may need them.
        left = strict and (unused or self.unmatched)
        problems = [*self.problems, *(self.doubts if strict else ())]
        if not problems and not left:
            return
        said = [f"The checkpoint {self.checkpoint.path} does not fit the objects; nothing was assigned."]
        said += [f"- {problem}" for problem in problems]
        if left:
            said += [
                "Only in the checkpoint: " + _listed([self._described(name) for name in unused]),
                "Only in the objects: " + _listed([self._target(name) for name in self.unmatched]),
                "To say which belong together pass mapping={name in the checkpoint: variable or its name here}, with "
                "None for what is to be left out; to restore what matches, pass strict=False.",
                *self._hints(),
            ]
        raise CheckpointError("\n".join(said))

    def _hints(self) -> list[str]:
        slots = [name for name in self.unused if ".OPTIMIZER_SLOT" in name or "optimizer" in name.split("/")[0]]
        has_optimizer = any("optimizer" in name for name in self.targets.objects)
        return ["The checkpoint has an optimizer: add optimizer=... ."] if slots and not has_optimizer else []

    def _described(self, name: str) -> str:
        info = self.checkpoint.tensors[name]
        return f"{self.shown(name)!r} {info.dtype or 'of unknown type'} {list(info.shape)}"

    def _target(self, name: str) -> str:
        target = self.targets.all[name]
        return f"{name!r} {target.dtype} {list(target.shape)}"

    def _misfit(self, match: Match) -> str:
        target, info = match.target, self.checkpoint.tensors.get(match.tensor)
        if match.value is not None or info is None:
            return ""
        if info.shape != target.shape:
            ranks = {len(info.shape), len(target.shape)}
            is_gru = target.name.endswith("bias") and ranks == {1, 2} and info.shape[-1] == target.shape[-1]
            hint = " A GRU has such a bias with the other value of `reset_after`." if is_gru else ""
            return (
                f"{target.name!r} has shape {list(target.shape)}, and {self.shown(match.tensor)!r} in the checkpoint "
                f"{list(info.shape)}.{hint}"
            )
        if info.dtype is None or info.dtype.hasobject or rank_of_kind(info.dtype) > rank_of_kind(target.dtype):
            kind = "strings" if info.dtype is not None and info.dtype.hasobject else str(info.dtype)
            return f"{target.name!r} is {target.dtype}, which cannot hold {self.shown(match.tensor)!r}: that is {kind}."
        return ""


def _listed(names: Sequence[str]) -> str:
    if not names:
        return "nothing."
    more = f"\n    and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return "".join(f"\n    {name}" for name in names[:_SHOWN]) + more
