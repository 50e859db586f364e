"""`initial_rows`: some rows of what an initializer makes, without the others.

JAX's random numbers are a hash of a key and of each number's place in the array (with `jax_threefry_partitionable`,
which is JAX's default), and what initializers make of them they make element by element. So any row can be computed on
its own, and is the same number for number whoever computes it: a server its part of a table, or a table that grows the
row of an id that it meets for the first time.

Reference: John K. Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, SC 2011.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, JaxprEqn
from jax.extend.random import threefry2x32_p

from replicax.compat.jax_names import BY_ELEMENT, RANDOM_BITS
from replicax.errors import ArgumentError
from replicax.program.ir.interpreter import Interpreter, Rule, bind
from replicax.program.ir.jaxprs import aval_of
from replicax.program.ir.moving import inlined

_HALF, _LOW = 16, 0xFFFF
_BY_PLACE = "jax_threefry_partitionable"
_BITS_BY_ELEMENT = BY_ELEMENT | {"bitcast_convert_type", "shift_right_logical", "shift_left"}

#: The numbers of rows as two arrays of uint32, the high and the low halves: `(k,)` and `(k,)`.
RowNumbers: TypeAlias = tuple[jax.Array, jax.Array]


class Initializer(Protocol):
    """An initializer of Keras, or a function like one."""

    def __call__(self, shape: Sequence[int], dtype: object) -> jax.Array:
        """Returns the first value of a variable."""


class NotByRowsError(ArgumentError):
    """An initializer computes a row from others, or from random numbers of a kind that has no places."""


def initial_rows(
    initializer: Initializer, shape: Sequence[int], dtype: object
) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """Returns `(high, low) -> rows`, which computes rows of `initializer(shape, dtype)` by their numbers.

    Example:
        >>> import numpy as np
        >>> normal = lambda shape, dtype: jax.random.normal(jax.random.key(0), shape, dtype)
        >>> rows = initial_rows(normal, (1000, 4), "float32")(jnp.zeros(2, "uint32"), jnp.array([7, 900], "uint32"))
        >>> np.allclose(rows, normal((1000, 4), "float32")[np.array([7, 900])])
        True
    """
    shape = tuple(shape)
    # The program is only traced: nothing of that shape is computed. A number beyond the end gives the row of a longer
    # table.
    program = inlined(jax.make_jaxpr(lambda: initializer(shape, dtype=dtype))())

    def rows(high: jax.Array, low: jax.Array) -> jax.Array:
        return _Evaluation(shape, (high, low)).rows_of(program)

    numbers = jax.ShapeDtypeStruct((1,), jnp.uint32)
    made = jax.eval_shape(rows, numbers, numbers)
    if made.shape != (1, *shape[1:]):
        raise NotByRowsError(f"{initializer!r:.100} makes no rows of shape {shape[1:]}.")
    return rows


@dataclasses.dataclass(frozen=True)
class _Rows:
    """Some rows of a value of the shape of the table."""

    array: jax.Array


class _Evaluation(Interpreter):
    """Evaluates some rows of the result of a program without inputs."""

    def __init__(self, shape: tuple[int, ...], numbers: RowNumbers):
        rules: dict[str, Rule] = dict.fromkeys(_BITS_BY_ELEMENT, self._by_element)
        super().__init__(rules | {RANDOM_BITS: self._bits, "broadcast_in_dim": self._broadcast}, other=self._whole)
        self._shape, self._numbers = shape, numbers

    def rows_of(self, program: ClosedJaxpr) -> jax.Array:
        [value] = self.run(program, ())
        if isinstance(value, _Rows):
            return value.array
        if self._shape[:1] == (1,) or not jnp.shape(value):
            return self._alike(value)
        raise NotByRowsError("The first value of a table is an array, of which no row can be computed.")

    def _alike(self, row: jax.Array) -> jax.Array:
        return jnp.broadcast_to(row, (self._numbers[1].shape[0], *self._shape[1:]))

    def _has_rows(self, equation: JaxprEqn) -> bool:
        return len(equation.outvars) == 1 and aval_of(equation.outvars[0]).shape == self._shape

    def _whole(self, equation: JaxprEqn, inputs: Sequence[Any]) -> Sequence[jax.Array]:
        if self._has_rows(equation) or any(isinstance(each, _Rows) for each in inputs):
            raise NotByRowsError(
                f"The initializer of a table of shape {self._shape} uses `{equation.primitive.name}`, by which rows "
                "depend on each other. Choose one that draws each number on its own, such as VarianceScaling, "
                "RandomNormal or Zeros."
            )
        return bind(equation, inputs)

    def _by_element(self, equation: JaxprEqn, inputs: Sequence[Any]) -> Sequence[Any]:
        # The operands have the rows, or are the same for all of them.
        if not self._has_rows(equation) or any(
            not isinstance(each, _Rows) and aval_of(atom).shape[:1] not in ((), (1,))
            for atom, each in zip(equation.invars, inputs, strict=True)
        ):
            return self._whole(equation, inputs)
        return [_Rows(*bind(equation, [each.array if isinstance(each, _Rows) else each for each in inputs]))]

    def _broadcast(self, equation: JaxprEqn, inputs: Sequence[Any]) -> Sequence[Any]:
        if not self._has_rows(equation) or isinstance(inputs[0], _Rows) or not self._is_same_in_rows(equation):
            return self._whole(equation, inputs)
        return [_Rows(self._alike(*bind(equation, inputs, shape=(1, *self._shape[1:]))))]

    def _is_same_in_rows(self, equation: JaxprEqn) -> bool:
        shape = aval_of(equation.invars[0]).shape
        dimensions = equation.params["broadcast_dimensions"]
        return 0 not in dimensions or shape[dimensions.index(0)] == 1

    def _bits(self, equation: JaxprEqn, inputs: Sequence[Any]) -> Sequence[Any]:
        [key], width = inputs, equation.params["bit_width"]
        if not self._has_rows(equation):
            return self._whole(equation, inputs)
        if jax.random.key_impl(key) != "threefry2x32" or not getattr(jax.config, _BY_PLACE):
            raise NotByRowsError(
                f"Random numbers of the kind {jax.random.key_impl(key)!r} have no places in an array that could be "
                "computed one by one. Use JAX's default, 'threefry2x32' with jax_threefry_partitionable."
            )
        rows, columns = self._numbers[1].shape[0], math.prod(self._shape[1:])
        high, low = places(self._numbers, columns)
        left, right = jax.random.key_data(key)
        hashed = threefry2x32_p.bind(left, right, high, low)
        first, second = (half.reshape(rows, *self._shape[1:]) for half in hashed)
        if width == 64:
            return [_Rows(first.astype(jnp.uint64) << 32 | second.astype(jnp.uint64))]
        return [_Rows((first ^ second).astype(f"uint{width}"))]


def places(numbers: RowNumbers, columns: int) -> RowNumbers:
    """Returns the places in the array of the numbers in rows, `(k, columns)`, as 64 bits in two halves."""
    high, low = numbers
    left, right = low >> _HALF, low & _LOW  # x64 is off in most programs: 64 bits are multiplied by hand
    upper, lower = jnp.uint32(columns >> _HALF), jnp.uint32(columns & _LOW)
    middle = left * lower + ((right * lower) >> _HALF)
    crossed = right * upper + (middle & _LOW)
    product_low = low * jnp.uint32(columns)
    product_high = left * upper + (middle >> _HALF) + (crossed >> _HALF) + high * jnp.uint32(columns)
    column = jnp.arange(columns, dtype=jnp.uint32)
    place = product_low[:, None] + column
    return product_high[:, None] + (place < column).astype(jnp.uint32), place
