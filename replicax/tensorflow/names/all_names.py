"""The fate of each public name of TensorFlow: data without logic, one row for each name.

The guide `docs/guides/from-tf-distribute.md` shows these rows. An `AttributeError` for a name that does not exist here
gives the advice of its row, and so does the error for a keyword.
"""

from __future__ import annotations

from replicax.tensorflow.names.cluster import CLUSTER
from replicax.tensorflow.names.dtensor import DTENSOR
from replicax.tensorflow.names.estimator import ESTIMATOR
from replicax.tensorflow.names.outside_distribute import BESIDE
from replicax.tensorflow.names.rows import Rows
from replicax.tensorflow.names.strategies import STRATEGIES
from replicax.tensorflow.names.values import VALUES
from replicax.tensorflow.names.variables import VARIABLES

NAMES: Rows = {**STRATEGIES, **VALUES, **CLUSTER, **DTENSOR, **VARIABLES, **BESIDE, **ESTIMATOR}
