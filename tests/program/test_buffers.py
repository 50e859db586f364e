import pytest

from replicax.program.buffers import holders


class Owner:
    def __init__(self):
        self.value = object()


def test_a_value_that_only_its_owner_has_is_held_once():
    owner = Owner()
    count = holders(owner.value)  # pytest's assert would hold the value too
    assert count == 1


@pytest.mark.parametrize("others", [1, 2, 5])
def test_every_other_reference_counts(others):
    owner = Owner()
    held = [owner.value for _ in range(others)]
    count = holders(owner.value)
    assert count == 1 + len(held)
