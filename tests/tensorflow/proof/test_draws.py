import numpy as np
import pytest

from replicax.tensorflow.proof.draws import Draws, initial_values


def test_the_nth_draw_of_a_kind_and_shape_is_the_same_everywhere():
    one, other = Draws(), Draws()
    first = one.normal("variable", (3, 2), one.number("variable", (3, 2)))
    second = one.normal("variable", (3, 2), one.number("variable", (3, 2)))
    other.number("variable", (9,))  # another shape does not count
    np.testing.assert_array_equal(first, other.normal("variable", (3, 2), other.number("variable", (3, 2))))
    assert not np.array_equal(first, second)


@pytest.mark.parametrize(
    ("kind", "config", "deviation"),
    [
        ("GlorotUniform", {}, np.sqrt(2 / (300 + 100))),
        ("GlorotUniform", {"seed": None, "scale": 1.0, "mode": "fan_avg", "distribution": "uniform"}, np.sqrt(2 / 400)),
        ("HeNormal", {}, np.sqrt(2 / 300)),
        ("RandomNormal", {"mean": 0.0, "stddev": 0.3}, 0.3),
        ("RandomUniform", {"minval": -1.0, "maxval": 1.0}, 1 / np.sqrt(3)),
    ],
)
def test_initial_values_have_the_scale_of_the_initializer(kind, config, deviation):
    values = initial_values(Draws(), kind, config, (300, 100), 0)
    assert abs(values.mean()) < 0.05 * deviation
    # Normal numbers are cut at two deviations.
    assert values.std() == pytest.approx(deviation, rel=0.13)


def test_initializers_of_another_scale_have_other_values():
    glorot = initial_values(Draws(), "GlorotUniform", {}, (4, 4), 0)
    he = initial_values(Draws(), "HeUniform", {}, (4, 4), 0)
    assert not np.allclose(glorot, he)
