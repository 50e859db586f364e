"""TensorFlow's names and what has become of them: the table, and the advice in errors."""

from replicax.migration.asking import (
    Advised,
    AdvisedContract,
    AdvisedContractType,
    advice_for,
    asked_as,
    not_found,
    resolved,
)
from replicax.migration.calling import called_as
from replicax.migration.names import NAMES
from replicax.migration.rows import Keyword, Row

__all__ = [
    "NAMES",
    "Advised",
    "AdvisedContract",
    "AdvisedContractType",
    "Keyword",
    "Row",
    "advice_for",
    "asked_as",
    "called_as",
    "not_found",
    "resolved",
]
