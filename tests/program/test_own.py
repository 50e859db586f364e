import jax.numpy as jnp
import pytest

from replicax.program.bound_variables import own


class Owner:
    def __init__(self, value):
        self._value = value


def test_a_value_that_only_its_variable_has_stays():
    owner = Owner(jnp.arange(3.0))
    before = id(owner._value)  # a reference to the array itself would be one that counts
    own([owner])
    assert id(owner._value) == before


@pytest.mark.parametrize("others", [1, 2, 5])
def test_a_value_that_somebody_else_holds_is_copied(others):
    owner = Owner(jnp.arange(3.0))
    held = [owner._value for _ in range(others)]
    own([owner])
    assert all(owner._value is not other for other in held)
    assert owner._value.tolist() == [0.0, 1.0, 2.0]


def test_of_variables_that_share_an_array_all_but_the_last_get_a_copy():
    owners = [Owner(jnp.arange(3.0))]
    owners += [Owner(owners[0]._value) for _ in range(2)]
    before = id(owners[0]._value)
    own(owners)
    assert [id(owner._value) == before for owner in owners] == [False, False, True]
