from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.errors import ArgumentError

F32 = rx.TensorSpec((None, 3), "float32")
SCALAR = jax.ShapeDtypeStruct((), "float32")


def doubled(spec, **keywords):
    return rx.function(lambda x: x * 2, input_signature=[spec], **keywords)


@pytest.mark.parametrize(
    "given",
    [np.ones((2, 3), np.float32), jnp.ones((2, 3)), np.ones((2, 3)), np.ones((2, 3), np.int64)],
    ids=["numpy", "jax", "float64", "int64"],
)
def test_what_fits_has_the_dtype_of_the_signature_and_one_program(given):
    f = doubled(F32)
    for _ in range(2):
        result = f(given)
        assert result.dtype == jnp.float32
        np.testing.assert_array_equal(result, np.full((2, 3), 2.0))
    f(jnp.ones((2, 3)))
    assert f.num_programs == 1


@pytest.mark.parametrize(
    ("dtype", "given"),
    [("int32", 2**40), ("int32", np.int64(-(2**40))), ("uint8", -1), ("uint8", 300), ("int8", np.array([1, 128]))],
)
def test_what_does_not_fit_in_the_dtype_is_refused_and_does_not_wrap_around(dtype, given):
    shape = np.shape(given)
    f = doubled(rx.TensorSpec(shape, dtype))
    with pytest.raises(ArgumentError, match=f"out of the range of {dtype}"):
        f(given)
    assert int(np.max(f(np.ones(shape, np.int64)))) == 2


def test_the_largest_and_the_smallest_number_of_a_dtype_fit():
    f = rx.function(lambda x: x, input_signature=[rx.TensorSpec((2,), "int8")])
    assert f(np.array([-128, 127])).tolist() == [-128, 127]


def test_a_size_of_none_takes_any_and_each_makes_a_program():
    f = doubled(F32)
    assert [f(np.ones((rows, 3), np.float32)).shape for rows in (1, 2, 1)] == [(1, 3), (2, 3), (1, 3)]
    assert f.num_programs == 2


@pytest.mark.parametrize(
    ("spec", "given"),
    [
        (F32, np.ones((2, 4), np.float32)),
        (F32, np.ones(3, np.float32)),
        (F32, jnp.ones((2, 3), "int32")),
        (F32, jnp.ones((2, 3), "bfloat16")),
        (jax.ShapeDtypeStruct((), "int32"), 1.5),
        (jax.ShapeDtypeStruct((), "int32"), np.float32(1)),
        (jax.ShapeDtypeStruct((), "bool"), 1),
        (SCALAR, True),
        (SCALAR, "1"),
        (SCALAR, None),
        ([SCALAR, SCALAR], [1.0]),
        ({"a": SCALAR}, {"b": 1.0}),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused(spec, given):
    f = doubled(spec)
    with pytest.raises(ArgumentError, match=r"'x' of <lambda> must be"):
        f(given)
    assert f.num_programs == 0


@pytest.mark.parametrize(("dtype", "number"), [("float32", 3), ("int32", 3), ("bool", True), ("complex64", 1.5)])
def test_a_python_number_gets_the_dtype(dtype, number):
    f = rx.function(lambda x: x, input_signature=[jax.ShapeDtypeStruct((), dtype)])
    assert f(number).dtype == dtype
    assert f(number) == number


def test_of_a_variable_it_is_the_value():
    v = rx.Variable(2.0)
    f = doubled(SCALAR)
    assert float(f(v)) == 4.0
    v.assign(3.0)
    assert float(f(v)) == 6.0
    assert f.num_programs == 1


def test_arguments_may_be_given_by_name_and_those_beyond_keep_their_defaults():
    @rx.function(input_signature=[SCALAR, {"a": SCALAR}])
    def f(x, nest, factor=10.0):
        return (x + nest["a"]) * factor

    assert float(f(1, nest={"a": 2.0})) == 30.0
    assert float(f(nest={"a": 2.0}, x=1)) == 30.0
    for call in (lambda: f(1), lambda: f(1, {"a": 1.0}, 5.0), lambda: f(1, {"a": 1.0}, factor=5.0), lambda: f(y=1)):
        with pytest.raises(ArgumentError, match=r"takes the 2 argument\(s\)"):
            call()


def test_a_method_has_the_signature_without_self():
    class Scaled:
        @rx.function(input_signature=[SCALAR])
        def of(self, x):
            return x * 3

    assert float(Scaled().of(2)) == 6.0
    with pytest.raises(ArgumentError, match="'x' of of"):
        Scaled().of([1.0, 2.0])


def test_a_per_replica_argument_has_the_spec_of_a_component(mirrored, per_replica):
    two = mirrored(2)
    dataset = two.distribute_dataset([np.ones((4, 3), np.float32)])

    @rx.function(input_signature=[dataset.element_spec])
    def total(batch):
        return two.reduce("sum", two.run(jnp.sum, args=(batch,)), axis=None)

    assert float(total(next(iter(dataset)))) == 12.0
    with pytest.raises(ArgumentError, match=r"float32\[2, 3\].*float32\[1\]"):
        total(per_replica(two, [1.0], [2.0]))


def test_it_holds_inside_another_function_and_eagerly(mirrored):
    f = doubled(SCALAR)
    assert float(rx.function(lambda x: f(x))(jnp.float32(2))) == 4.0
    with pytest.raises(ArgumentError, match="must be an array of float32"):
        rx.function(lambda x: f(x))(jnp.ones(2))
    rx.config.run_eagerly(True)
    try:
        with pytest.raises(ArgumentError, match="must be an array of float32"):
            f(jnp.ones(2))
    finally:
        rx.config.run_eagerly(False)


@pytest.mark.parametrize(
    ("specs", "message"),
    [(SCALAR, "list or tuple"), ({"x": SCALAR}, "list or tuple"), ([1.0], "a shape and a dtype"), ([None, 3], "shape")],
    ids=str,
)
def test_a_signature_is_a_list_of_specs(specs, message):
    with pytest.raises(ArgumentError, match=message):
        rx.function(lambda x: x, input_signature=specs)


@pytest.mark.parametrize("fn", [lambda: 0, lambda x, y: 0, lambda x, *, y: 0], ids=["none", "two", "by name"])
def test_a_signature_has_a_spec_for_each_parameter_without_a_default(fn):
    with pytest.raises(ArgumentError, match="Give one for each parameter without a default"):
        rx.function(fn, input_signature=[SCALAR])(1.0)


def test_the_signature_can_be_asked_for():
    assert doubled(F32).input_signature == (F32,)
    assert rx.function(lambda x: x).input_signature is None


def test_lowering_checks_too():
    with pytest.raises(ArgumentError, match="must be an array"):
        doubled(SCALAR).lower(jnp.ones(2))
    assert "HloModule" in doubled(SCALAR).lower(2).compile().as_text()


def test_a_dtype_that_jax_does_not_have_means_the_one_that_it_takes_for_it():
    double = rx.function(lambda x: 2 * x, input_signature=[rx.TensorSpec([None], "int64")])
    for given in (np.arange(3), jnp.arange(3)):
        assert double(given).tolist() == [0, 2, 4]
    assert double.num_programs == 1


def test_build_takes_the_arguments_as_calls_do():
    double = rx.function(lambda x: 2 * x, input_signature=[rx.TensorSpec([None], "float32")])
    double.build(np.arange(3))
    double(np.arange(3))
    assert double.num_programs == 1
    with pytest.raises(rx.errors.ArgumentError, match="input_signature"):
        double.build(np.ones((2, 2)))
