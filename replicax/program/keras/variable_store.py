"""Variables of a function that makes them each time it is called, as a model function does.

A function that is traced is called several times, and a model function makes its layers in each call. The variables of
the first call are the variables: `keras.Variable` and `rx.Variable` ask the store of the current context before they
make one, and get back what has that name. So programs, optimizers and checkpoints see one object all the time, and
values are where they would be if the layers had been made outside.

A name is the path that Keras gives a variable (`dense/kernel`, `adam/dense_kernel_momentum`), or the name of an
`rx.Variable`. If a call uses a name twice, the second one gets a number (`scale_1`). Keras numbers the names of layers
through the whole process; here each call begins anew, so that another process finds the same names.
"""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Callable, Iterator
from typing import TypeVar

import replicax.compat.keras as keras_door
import replicax.context as context
from replicax.compat.keras_backend import keras_is_loaded
from replicax.contracts.variable_access import VariableLike, free_name, was_made
from replicax.program.frames import OverrideFrame
from replicax.program.keras.hooks import install_keras_hooks
from replicax.program.keras.state import keras_scope
from replicax.typing import PyTree

_T = TypeVar("_T")


class VariableStore:
    """The variables that one function makes, by name.

    Example:
        >>> from replicax import Variable
        >>> store = VariableStore()
        >>> with store.call():
        ...     first = Variable(1.0, name="w")
        >>> with store.call():
        ...     again = Variable(1.0, name="w")
        >>> first is again, list(store.variables)
        (True, ['w'])
    """

    def __init__(self) -> None:
        self._variables: dict[str, VariableLike] = {}
        self._used: collections.Counter[str] = collections.Counter()
        self._keras_names: dict[str, int] = collections.defaultdict(int)

    @property
    def variables(self) -> dict[str, VariableLike]:
        """The variables that are complete, in the order in which they were made."""
        return {name: variable for name, variable in self._variables.items() if was_made(variable)}

    @contextlib.contextmanager
    def call(self, goes_on: bool = False) -> Iterator[None]:
        """Opens the store for one call of the function; if `goes_on`, for more of the last call, whose names go on."""
        if not goes_on:
            self._used.clear()
            self._keras_names = collections.defaultdict(int)
        named: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if keras_is_loaded():
            install_keras_hooks()
            named = keras_door.objects_named_anew(self._keras_names)
        with named, context.entered(named_variables=self):
            yield

    def skip(self, name: str) -> None:
        """Notes that a name is in use in this call: the next variable of that name gets a number."""
        self._used[name] += 1

    def variable(self, name: str, new: Callable[[], object]) -> object:
        """Returns the next variable of a name in this call: that of an earlier call, or what `new` returns."""
        asked, name = name, free_name(name, self._used, first=self._used[name])  # as TensorFlow numbers names
        self._used[asked] += 1
        if name != asked:
            self._used[name] += 1
        known = self._variables.get(name)
        if known is None or not was_made(known):
            known = self._variables[name] = new()  # type: ignore[assignment]  # a variable, when it is complete
        return known

    @staticmethod
    def call_for_real(fn: Callable[..., _T], *args: PyTree) -> _T:
        """Calls a function that makes variables, operation by operation, and forgets what it assigns to them."""
        # A variable may then be made of any array, also of one that the function has computed (`jnp.zeros(3)`), which
        # in a trace is no number.
        frame = OverrideFrame(None, (), ())
        try:
            with context.entered(frame=frame), keras_scope():
                return fn(*args)
        finally:
            frame.accesses.lose()
