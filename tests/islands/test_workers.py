"""Islands that are processes."""

import numpy as np
import pytest

from tests.islands.programs import bytes_of_a_round_and_a_step, train_alone_and_together, values_after_ten_steps
from tests.islands.test_strategy import X, diloco

pytestmark = pytest.mark.multiprocess


@pytest.mark.nightly
def test_workers_are_islands(cluster):
    results = cluster.run(train_alone_and_together, workers=2, every=3)
    assert [(each["index"], each["islands"], each["rows"]) for each in results] == [(0, 2, len(X)), (1, 2, len(X))]
    assert results[0]["values"] == results[1]["values"]
    for value, expected in zip(results[0]["values"], diloco(2, 3, 1.0, 0.0), strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.nightly
def test_a_round_of_fifty_steps_sends_a_fiftieth_of_the_bytes(cluster):
    for found in cluster.run(bytes_of_a_round_and_a_step, workers=2, timeout=240):
        assert found["step_of_an_island"] == 0
        assert found["exchange"] == 4 * found["parameters"]
        assert found["exchange"] / 50 <= found["mirrored_step"] / 50
        assert found["mirrored_step"] >= 4 * found["parameters"]
        assert found["told"] >= 2 * found["exchange"]


@pytest.mark.slow
def test_rounds_of_one_step_are_mirrored_training(cluster):
    local, mirrored = (
        cluster.run(values_after_ten_steps, workers=2, timeout=240, strategy_name=name)
        for name in ("local_sgd", "mirrored")
    )
    assert [each["steps"] for each in (*local, *mirrored)] == [10] * 4
    assert local[0]["values"] == local[1]["values"]
    for value, expected in zip(local[0]["values"], mirrored[0]["values"], strict=True):
        wanted = np.asarray(expected)
        np.testing.assert_allclose(value, wanted, rtol=1e-6, atol=1e-6 * np.abs(wanted).max())
