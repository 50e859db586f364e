from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.tensorflow.names.calls import Caller


@pytest.fixture
def call(request: pytest.FixtureRequest) -> Iterator[Caller]:
    """Calls by TensorFlow's keywords; at the end all that the test is to try have been used."""
    caller = Caller()
    yield caller
    assert {name: untried for name in request.function.tries if (untried := caller.untried(name))} == {}
