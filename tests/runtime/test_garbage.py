import gc

import pytest

from replicax.runtime.garbage import collected_later


@pytest.fixture(autouse=True)
def as_before():
    runs = gc.isenabled()
    yield
    (gc.enable if runs else gc.disable)()


def test_nothing_is_collected_in_the_block_and_it_goes_on_afterwards():
    gc.enable()
    with collected_later():
        assert not gc.isenabled()
        with collected_later():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_it_goes_on_after_an_error():
    gc.enable()
    with pytest.raises(ValueError, match="inside"), collected_later():
        raise ValueError("inside")
    assert gc.isenabled()


def test_a_collector_that_a_user_has_stopped_stays_stopped():
    gc.disable()
    with collected_later():
        pass
    assert not gc.isenabled()
