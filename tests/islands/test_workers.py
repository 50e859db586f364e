"""Islands that are processes."""

import numpy as np
import pytest

from tests.islands.programs import bytes_of_a_round_and_a_step, train_alone_and_together
from tests.islands.test_strategy import X, diloco

pytestmark = pytest.mark.multiprocess


def test_workers_are_islands(cluster):
    results = cluster.run(train_alone_and_together, workers=2, every=3)
    assert [(each["index"], each["islands"], each["rows"]) for each in results] == [(0, 2, len(X)), (1, 2, len(X))]
    assert results[0]["values"] == results[1]["values"]
    for value, expected in zip(results[0]["values"], diloco(2, 3, 1.0, 0.0), strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_a_round_of_fifty_steps_sends_a_fiftieth_of_the_bytes(cluster):
    for found in cluster.run(bytes_of_a_round_and_a_step, workers=2, timeout=240):
        assert found["step_of_an_island"] == 0
        assert found["exchange"] == 4 * found["parameters"]
        assert found["exchange"] / 50 <= found["mirrored_step"] / 50
        assert found["mirrored_step"] >= 4 * found["parameters"]
        assert found["told"] >= 2 * found["exchange"]
