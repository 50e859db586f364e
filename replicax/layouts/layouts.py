"""The layouts of all variables of a strategy: decided once for each, an optimizer's like its parameters'."""

from __future__ import annotations

import difflib
import math
import weakref
from collections.abc import Iterable, Sequence

from replicax.contracts.variable_access import VariableLike, dtype_of, is_trained, name_of, shape_of
from replicax.errors import LayoutError
from replicax.layouts.decisions import Decision, Rules, whole
from replicax.layouts.slots import by_name, maker_is_optimizer, slot_of
from replicax.program.keras.makers import makers_of

_NEAR, _MOST_PATHS = 3, 20  # paths that a message lists
_LARGE, _LARGE_PART = 2**20, 0.01  # elements, and a part of all elements: from here on a copy on each device is told


class Layouts:
    """Decides about each variable when it is asked for first, which is while the variable is made."""

    def __init__(self, rules: Rules, min_size: int):
        self._rules, self._min_size = rules, min_size
        self._decided: dict[int, tuple[weakref.ref[VariableLike], Decision]] = {}
        self._seen: dict[str, None] = {}  # Paths, in the order in which they were asked for.
        self._parameters: list[weakref.ref[VariableLike]] = []

    def of(self, variable: VariableLike) -> Decision:
        known = self._decided.get(id(variable))
        if known is not None and known[0]() is variable:
            return known[1]
        self._seen.setdefault(name_of(variable))
        decision = self._decide(variable)
        key = id(variable)
        self._decided[key] = weakref.ref(variable, lambda _: self._decided.pop(key, None)), decision
        return decision

    def _decide(self, variable: VariableLike) -> Decision:
        is_slot = maker_is_optimizer(variable)
        # Keras makes some of it (moving averages) before the optimizer knows what it trains.
        slot = (slot_of(variable) if is_slot else None) or by_name(variable, self.known_parameters())
        if slot is not None:
            of_parameter = self.of(slot.parameter)
            axes = tuple(of_parameter.axes[i] for i in slot.dimensions)
            return Decision(axes, f"as {name_of(slot.parameter)}", is_asked_for=of_parameter.is_asked_for)
        if is_slot:
            return whole(shape_of(variable), "an optimizer's, of no parameter")
        if is_trained(variable):
            self._parameters.append(weakref.ref(variable))
        return self._rules.decide(variable)

    def known_parameters(self) -> list[VariableLike]:
        """Returns the variables that optimizers train, as far as they have been asked for and still exist."""
        return [variable for each in self._parameters if (variable := each()) is not None]

    @property
    def has_layers(self) -> bool:
        """Whether a layer has made a variable that optimizers train."""
        return any(map(makers_of, self.known_parameters()))

    def unused(self) -> str:
        """Returns what there is to say of patterns that match none of the variables so far; empty if all do."""
        patterns = self._rules.unused() if self._seen else ()
        return _said_of_unused(patterns, list(self._seen)) if patterns else ""

    def check_used(self) -> None:
        """Checks that each pattern of the user's has matched a variable."""
        # A typing error, or a renamed layer, would otherwise go unnoticed.
        unused = self.unused()
        if unused:
            raise LayoutError(unused)

    def large_and_whole(self, variables: Iterable[VariableLike]) -> list[str]:
        """Returns lines about large variables of which every device holds a copy that nobody has asked for."""
        variables = list(variables)
        total = sum(math.prod(shape_of(variable)) for variable in variables)
        found = []
        for variable in variables:
            size, decision = math.prod(shape_of(variable)), self.of(variable)
            is_large = size >= _LARGE or (size >= self._min_size and size > _LARGE_PART * total)
            if is_large and not decision.is_cut and not decision.is_asked_for:
                found.append(
                    f"{name_of(variable)} {shape_of(variable)} {dtype_of(variable)}, {size:,} of {total:,} elements "
                    f"({decision.why})"
                )
        return found


def _said_of_unused(patterns: Sequence[str], paths: Sequence[str]) -> str:
    near = {pattern: difflib.get_close_matches(pattern, paths, n=_NEAR, cutoff=0.3) for pattern in patterns}
    hints = [f"Near {pattern!r}: {', '.join(found)}." for pattern, found in near.items() if found]
    shown = ", ".join(paths[:_MOST_PATHS]) + (f" and {len(paths) - _MOST_PATHS} more" * (len(paths) > _MOST_PATHS))
    return " ".join(
        [
            f"The layout patterns {list(patterns)} match no variable. A pattern is a regular expression that is "
            "searched for in a variable's path.",
            *hints,
            f"The variables are: {shown or 'none yet'}.",
        ]
    )
