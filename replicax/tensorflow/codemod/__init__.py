"""`replicax migrate`: rewrites TensorFlow scripts, and proves that the result computes the same.

The walk through a conversion:

1. `script.py` parses, with each statement on a line of its own (`spreading.py`); `names.py` resolves imports and
   aliases; `kinds.py` infers kinds of objects.
2. Planners (`gradients.py`, `functions.py`, `pipelines.py` ...) find whole statements to rewrite: tapes, compiled
   functions, pipelines. `conversion.py` lists them.
3. `rewriter.py` walks through the tree once: each name, call and method by the rules in `tables/`, which write by
   `writer.py`.
4. `imports.py` writes the imports, `formatting.py` formats what has changed.

libcst and ruff are imported when a script is converted, not with this package.
"""

from __future__ import annotations

from replicax.tensorflow.codemod.findings import Finding

__all__ = ["Finding"]
