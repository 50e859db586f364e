"""TensorFlow's names and what has become of them: the table that guides and errors show."""

from replicax.contracts.advice import Keyword, NameTables, Row
from replicax.tensorflow.names.all_names import NAMES
from replicax.tensorflow.names.asking import asked_as, index, resolved

__all__ = ["NAMES", "Keyword", "Row", "asked_as", "resolved", "tables"]


def tables() -> NameTables:
    """Returns the tables of names for the advice in errors."""
    return NameTables(NAMES, index())
