"""Our reading of event files beside TensorBoard's own."""

from __future__ import annotations

import numpy as np
import pytest

from tests import events


@pytest.mark.nightly
def test_tensorboard_itself_reads_the_same(tmp_path):
    from tensorboardX import SummaryWriter

    loader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator", reason="needs TensorBoard")
    for first in (0, 3):  # two files
        with SummaryWriter(str(tmp_path), filename_suffix=f".{first}") as writer:
            for step in range(first, first + 3):
                writer.add_scalar("loss", 1 / (1 + step), step)
                writer.add_histogram("weights", np.arange(step + 2.0), step)
    with SummaryWriter(str(tmp_path), filename_suffix=".text") as writer:
        writer.add_text("settings", "rate=0.1 · größer", 0)
    theirs = loader.EventAccumulator(str(tmp_path), size_guidance={"histograms": 0, "scalars": 0}).Reload()
    assert events.scalars(tmp_path) == {"loss": [(each.step, each.value) for each in theirs.Scalars("loss")]}
    [(name, ours)] = events.series(tmp_path, "histo").items()
    for (step, value), other in zip(ours, theirs.Histograms(name), strict=True):
        found = other.histogram_value
        assert (step, value.num, value.min, value.max, value.sum) == (
            other.step, found.num, found.min, found.max, found.sum,
        )  # fmt: skip
        assert [*value.bucket] == [*found.bucket]
    [text] = theirs.Tensors("settings/text_summary")
    assert events.text(tmp_path, "settings") == text.tensor_proto.string_val[0].decode()
