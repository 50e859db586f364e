"""Embedding tables, sharded by rows over devices or on parameter servers. Importing this does not import Keras."""

from replicax.tables.hashing import hashed_ids
from replicax.tables.row_optimizers import RowOptimizer, Slot, row_optimizer, updated_rows
from replicax.tables.specs import FeatureConfigLike, TableConfigLike, TableSpec, table_spec

__all__ = [
    "FeatureConfigLike",
    "RowOptimizer",
    "Slot",
    "TableConfigLike",
    "TableSpec",
    "hashed_ids",
    "row_optimizer",
    "table_spec",
    "updated_rows",
]
