"""Islands that are processes."""

import numpy as np
import pytest

from tests.islands.programs import train_alone_and_together
from tests.islands.test_strategy import X, diloco

pytestmark = pytest.mark.multiprocess


def test_workers_are_islands(cluster):
    results = cluster.run(train_alone_and_together, workers=2, every=3)
    assert [(each["index"], each["islands"], each["rows"]) for each in results] == [(0, 2, len(X)), (1, 2, len(X))]
    assert results[0]["values"] == results[1]["values"]
    for value, expected in zip(results[0]["values"], diloco(2, 3, 1.0, 0.0), strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-6)
