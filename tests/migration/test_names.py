from __future__ import annotations

import pytest

import replicax as rx
from replicax.migration import NAMES, resolved


@pytest.mark.parametrize("tf_name", NAMES)
def test_a_row_is_whole_and_what_it_names_is_there(tf_name: str):
    row = NAMES[tf_name]
    assert tf_name.startswith("tf")
    assert not row.note or row.note.endswith(".")
    if row.kind == "absent":
        assert not row.here
        assert row.note
    else:
        assert resolved(rx, row) is not None
