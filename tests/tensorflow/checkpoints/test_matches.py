from __future__ import annotations

import numpy as np
import pytest

import replicax as rx
from replicax.errors import CheckpointError
from replicax.tensorflow.checkpoints import open_checkpoint
from replicax.tensorflow.checkpoints.matches import Match, Matches
from replicax.tensorflow.checkpoints.reader import without_end
from replicax.tensorflow.checkpoints.targets import Targets
from tests.migrate.bundles import write_bundle


@pytest.fixture
def matches(tmp_path):
    write_bundle(tmp_path / "w", {name: np.zeros(2, "float32") for name in "abc"})
    return Matches(open_checkpoint(tmp_path / "w"), Targets({name: rx.Variable([0.0, 0.0]) for name in "xyz"}))


def test_a_target_gets_one_tensor_and_a_tensor_one_target(matches):
    x, y = matches.targets.all["x"], matches.targets.all["y"]
    assert matches.add(Match(x, "a"))
    assert not matches.add(Match(x, "a"))
    assert not matches.problems
    assert not matches.add(Match(x, "b"))
    assert not matches.add(Match(y, "a"))
    assert matches.problems == [
        "'x' could be 'a' or 'b' in the checkpoint.",
        "'a' in the checkpoint could be 'x' or 'y'.",
    ]


def test_what_is_left_is_known(matches):
    matches.add(Match(matches.targets.all["x"], "a"))
    matches.ignore("b", "it is not needed")
    matches.ignore("nothing", "it is not there")
    matches.keep(matches.targets.all["y"], "it needs nothing")
    assert (matches.unused, matches.unmatched) == (["c"], ["z"])
    assert list(matches.ignored) == ["b"]
    with pytest.raises(CheckpointError, match=r"Only in the checkpoint: \n    'c' float32 \[2\]\nOnly in the objects"):
        matches.check(strict=True)
    matches.check(strict=False)


def test_what_is_left_in_the_checkpoint_is_not_known_while_objects_are_not_built(matches):
    for target in matches.targets.all.values():
        matches.keep(target, "for a test")
    matches.check(strict=True, is_final=False)
    with pytest.raises(CheckpointError):
        matches.check(strict=True)


def test_problems_count_always_and_doubts_only_in_strict_restores(matches):
    matches.doubt("A number differs.")
    matches.check(strict=False)
    matches.problem("It does not fit.")
    with pytest.raises(CheckpointError, match="- It does not fit"):
        matches.check(strict=False)


def test_names_are_shown_without_their_common_end():
    assert without_end("model/w/.ATTRIBUTES/VARIABLE_VALUE") == "model/w"
