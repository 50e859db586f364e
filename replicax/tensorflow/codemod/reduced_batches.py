"""A note on what is reduced over the replicas: a batch that does not divide is cut otherwise than in TensorFlow."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst
from libcst import matchers as m

from replicax.tensorflow.codemod.findings import Finding
from replicax.tensorflow.codemod.script import Script

_REASON = (
    "A batch that does not divide by the number of replicas is cut otherwise than in TensorFlow, and a last batch may "
    "run on fewer replicas. Sums of losses that are divided by the global batch size are the same; means, and sums of "
    "means or constants, of such a batch can differ. `drop_remainder=True` avoids it."
)


def notes(script: Script) -> Iterator[Finding]:
    """Yields one note for a script, at the first `strategy.reduce` of the results of a batch."""
    if not m.findall(script.module, m.Attribute(attr=m.Name("experimental_distribute_dataset"))):
        return
    for node in m.findall(script.module, m.Call(func=m.Attribute(attr=m.Name("reduce")))):
        func = cst.ensure_type(cst.ensure_type(node, cst.Call).func, cst.Attribute)
        if script.kinds.is_a(func.value, "tf.distribute.Strategy"):
            yield Finding(script.line(node), "tf.distribute.Strategy.reduce", _REASON, "note")
            return
