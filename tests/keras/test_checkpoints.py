from __future__ import annotations

import pytest

from replicax.errors import ArgumentError
from replicax.keras.sidecar import Watched


def test_what_is_no_path_is_refused():
    with pytest.raises(ArgumentError, match="directory is a string"):
        Watched(3, "model")
