"""Accesses to variables in a pass of tracing, and the values that are lost when the pass is thrown away.

Layers and optimizers build themselves when they are first called: they make variables, and may give them a value made
of others (`ScheduleFreeAdamW` copies the weights). A pass in which that happens is traced again, and Python then finds
them built. So the first call of such a function runs the first pass, the later ones run the next. Where that cannot be
done, the first value of the variable is lost, and a program that reads it is refused.
"""

from __future__ import annotations

import collections
import weakref

from replicax.contracts.variable_access import VariableLike, array_of, name_of
from replicax.errors import ProgramError
from replicax.program.flax_changes import ModuleChanges

_LOST = "_replicax_lost"  # an attribute of variables: it asks for the value that they had when the pass ended


class Accesses:
    """The accesses of one pass."""

    def __init__(self) -> None:
        self.first_values: dict[int, VariableLike] = {}  # by id: made in the pass, and assigned before they were read
        self.captured = False  # whether a step used a per-replica value that it has captured
        self.changes = ModuleChanges()
        self._read: dict[int, VariableLike] = {}  # They hold the variables, so that ids stay unique.
        self._made: dict[int, VariableLike] = {}
        self._assigned: dict[int, VariableLike] = {}
        self._counts: collections.Counter[int] = collections.Counter()

    def made(self, variable: VariableLike) -> None:
        """Notes that a variable was made, with a value already."""
        self._made[id(variable)] = variable

    def read(self, variable: VariableLike) -> None:
        """Notes that a variable was read; one whose first value was lost is refused."""
        key = id(variable)
        if key not in self._assigned and key not in self._read:
            _check_not_lost(variable)
            self._read[key] = variable

    def assigned(self, variable: VariableLike) -> None:
        key = id(variable)
        self._counts[key] += 1
        if key in self._assigned:
            return
        self._assigned[key] = variable
        if key not in self._read and (array_of(variable) is None or key in self._made):
            self.first_values[key] = variable

    def given(self, variable: VariableLike) -> None:
        """Notes that a variable was given a value that outlives the pass, in the place of what it was assigned."""
        key = id(variable)
        del self._counts[key]
        self._assigned.pop(key, None)
        self.first_values.pop(key, None)
        self._read[key] = variable  # A value that is assigned from now on is not its first.

    def add(self, others: Accesses) -> None:
        """Notes what was done in a pass that is a part of this one."""
        for variable in others._made.values():
            self.made(variable)
        for key, variable in others._read.items():
            if key not in self._assigned:
                self._read[key] = variable
        for key, variable in others._assigned.items():
            self._assigned.setdefault(key, variable)
        for key, variable in others.first_values.items():
            if key not in self._read:
                self.first_values[key] = variable
        self._counts += others._counts

    def are_repeated_by(self, later: Accesses) -> bool:
        """Returns whether a later pass does the same with variables."""
        return self._counts == later._counts and not self.first_values.keys() & later._read.keys()

    def lose(self) -> None:
        """The pass is thrown away: refuses the variables in `first_values` from now on, until they are assigned."""
        for variable in self.first_values.values():
            value = array_of(variable)
            # Before Keras has initialised the variable its value is None.
            setattr(variable, _LOST, (lambda: None) if value is None else weakref.ref(value))


def _check_not_lost(variable: VariableLike) -> None:
    lost = getattr(variable, _LOST, None)
    if lost is None:
        return
    if lost() is not array_of(variable):
        delattr(variable, _LOST)
        return
    raise ProgramError(
        f"Variable {name_of(variable)!r} has lost its first value. It was assigned when the variable was made, by the "
        "`build` of a layer or an optimizer, say; that happened while a step was traced, and this pass of tracing was "
        "thrown away (the step failed, or its loss made variables, which takes another pass). Now it is built, and is "
        "not assigned again. Make it anew, and build it before the first step, in the strategy's scope: "
        "optimizer.build(model.trainable_variables), layer.build(shape). Or assign this variable."
    )
