"""flax's `nnx` variables and modules: what holds their values, and who may change them. flax is never imported here.

Guard: tests/compat/test_flax.py. Without these names modules are pytrees like any other, as before flax 0.12.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterable, Mapping
from types import MemberDescriptorType, ModuleType
from typing import Any, Protocol

from jax._src import core as jax_core
from jax.extend import core as jex_core

from replicax.compat.replacing import Name, Replaced
from replicax.typing import PyTree

_VALUE, _TRACE = "_raw_value", "_trace_state"  # slots of `nnx.Variable`
_STATE = "_pytree__state"  # in the attributes of each module: among others, the trace in which it was made
_KINDS = "_pytree__nodes"
_OWN = "_pytree__"  # how the names of attributes begin that are flax's own


class Redirection(Protocol):
    """The one that answers while a function is traced that uses variables from outside of the trace."""

    def __hash__(self) -> int:
        """Returns that of the object: its hooks are kept."""

    def read(self, variable: object, value: PyTree) -> PyTree:
        """Returns what a reader of a variable is given, in the place of its `value`."""

    def write(self, variable: object, value: PyTree) -> bool:
        """Takes a value that is assigned; returns whether it did. Otherwise the variable itself gets it."""

    def may_change(self) -> bool:
        """Returns whether variables and modules from outside may be changed here."""

    def changing(self, module: object) -> None:
        """Notes each module before one of its attributes is set or removed."""


def nnx() -> ModuleType | None:
    """Returns `flax.nnx` if somebody has imported it and has the names above; otherwise None."""
    module = sys.modules.get("flax.nnx")
    return module if module is not None and hasattr(module, "Pytree") and _is_known() else None


@functools.cache
def _is_known() -> bool:
    variable = sys.modules["flax.nnx"].Variable
    slots = [vars(variable).get(name) for name in (_VALUE, _TRACE)]
    library = getattr(sys.modules["flax.nnx"], "pytreelib", None)
    slots.append(vars(getattr(library, "PytreeState", object)).get(_TRACE))
    return all(isinstance(slot, MemberDescriptorType) for slot in slots)


@functools.cache
def _slot(name: str) -> MemberDescriptorType:
    slot: MemberDescriptorType = vars(sys.modules["flax.nnx"].Variable)[name]
    return slot


def prepare() -> None:
    """Looks the slots up while they are there: `redirected` puts something else in their place."""
    _slot(_VALUE), _slot(_TRACE)


def value_of(variable: object) -> PyTree:
    """Returns what a variable holds, whoever asks."""
    return _slot(_VALUE).__get__(variable)


def set_value(variable: object, value: PyTree) -> None:
    """Makes `value` what a variable holds: no check, no hook."""
    _slot(_VALUE).__set__(variable, value)


def is_from_outside(thing: object) -> bool:
    """Returns whether a variable or module was made outside of all that JAX traces."""
    state = _slot(_TRACE).__get__(thing) if is_variable(thing) else _trace_of(vars(thing)[_STATE])
    return bool(state.jax_trace == _outside())


def _trace_of(module_state: object) -> Any:
    return _state_slot().__get__(module_state)


@functools.cache
def _state_slot() -> MemberDescriptorType:
    slot: MemberDescriptorType = vars(sys.modules["flax.nnx"].pytreelib.PytreeState)[_TRACE]
    return slot


@functools.cache
def _outside() -> object:
    with jax_core.eval_context():
        return jex_core.get_opaque_trace_state()


def attributes_of(module: object, and_kinds: bool = False) -> dict[str, Any]:
    """Returns the attributes of a module that are not flax's own; or also the one that tells which of them are data."""
    return {
        name: value
        for name, value in vars(module).items()
        if not name.startswith(_OWN) or (and_kinds and name == _KINDS)
    }


def is_kinds(value: object) -> bool:
    """Returns whether an attribute tells which attributes are data."""
    return isinstance(value, type(vars(sys.modules["flax.nnx"].Module)[_KINDS]))


def set_attributes(module: object, new: Mapping[str, object], removed: Iterable[str]) -> None:
    """Takes attributes of a module away, and then gives it others, flax's own among them: no check, no hook."""
    attributes = vars(module)
    for name in removed:
        attributes.pop(name, None)
    attributes.update(new)


def move_outside(thing: object) -> None:
    """Makes a variable or module that was made in a trace one from outside."""
    slot, holder = (_slot(_TRACE), thing) if is_variable(thing) else (_state_slot(), vars(thing)[_STATE])
    with jax_core.eval_context():
        slot.__set__(holder, _of_here(slot.__get__(holder)))


def _of_here(state: Any) -> object:
    """Returns the state of the current trace, for that of another one."""
    return type(state)()


def is_variable(thing: object) -> bool:
    """Returns whether something is a variable of `nnx`."""
    return isinstance(thing, sys.modules["flax.nnx"].Variable)


def is_variable_or_module(thing: object) -> bool:
    """Returns whether something is a variable or a module (or optimizer, metric, stream) of `nnx`."""
    return is_variable(thing) or (isinstance(thing, sys.modules["flax.nnx"].Pytree) and _STATE in vars(thing))


def redirected(to: Redirection) -> contextlib.AbstractContextManager[None]:
    """Lets `to` answer for what is from outside, inside a `with` block; `to` must check which thread asks."""
    # Hooked meanwhile only: outside of such blocks a variable costs what it costs in flax.
    prepare()
    return _hooks(to)()


@functools.cache
def _hooks(to: Redirection) -> Replaced:
    nnx = sys.modules["flax.nnx"]
    wraps: list[tuple[Any, str, Callable[..., object]]] = [
        (nnx.Variable, _VALUE, _Value),
        (nnx.Variable, _TRACE, _Trace),
        (nnx.pytreelib.PytreeState, "trace_state", _StateTrace),
        (nnx.Pytree, "_setattr", _changing),
        (nnx.Pytree, "__delattr__", _changing),
    ]
    return Replaced(lambda: [Name(owner, name, functools.partial(wrap, to=to)) for owner, name, wrap in wraps])


class _Value:
    """Stands in the place of the slot with the value of a variable."""

    def __init__(self, slot: MemberDescriptorType, to: Redirection):
        self._slot, self._to = slot, to

    def __get__(self, variable: object, owner: type | None = None) -> PyTree:
        value = self._slot.__get__(variable, owner)
        if variable is None:
            return value
        return self._to.read(variable, value) if is_from_outside(variable) else value

    def __set__(self, variable: object, value: PyTree) -> None:
        if not (is_from_outside(variable) and self._to.write(variable, value)):
            self._slot.__set__(variable, value)


class _Trace:
    """Stands in the place of the slot with the trace in which a variable was made."""

    def __init__(self, slot: MemberDescriptorType, to: Redirection):
        self._slot, self._to = slot, to

    def __get__(self, variable: object, owner: type | None = None) -> object:
        state = self._slot.__get__(variable, owner)
        if variable is None:
            return state
        return type(state)() if state.jax_trace == _outside() and self._to.may_change() else state

    def __set__(self, variable: object, state: object) -> None:
        self._slot.__set__(variable, state)


class _StateTrace:
    """Stands in the place of the property that tells the trace in which a module was made."""

    def __init__(self, original: property, to: Redirection):
        self._original, self._to = original, to

    def __get__(self, module_state: object, owner: type | None = None) -> object:
        if module_state is None:
            return self._original
        state: Any = self._original.__get__(module_state, owner)
        return type(state)() if state.jax_trace == _outside() and self._to.may_change() else state


def _changing(original: Callable[..., None], to: Redirection) -> Callable[..., None]:
    @functools.wraps(original)
    def change(self: object, name: str, *args: object) -> None:
        if _STATE in vars(self) and is_from_outside(self):
            if name == _STATE:
                return  # A copy's, of the trace in which `nnx.grad` or `nnx.jit` made it.
            to.changing(self)
        original(self, name, *args)

    return change
