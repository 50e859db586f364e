"""TensorFlow's names and what has become of them: the table, and the advice in errors."""

from replicax.contracts.advice import Advised, AdvisedContract, AdvisedContractType, advice_for, asked_as, not_found, resolved
from replicax.contracts.called_as import called_as
from replicax.tensorflow.names.all_names import NAMES
from replicax.tensorflow.names.rows import Keyword, Row

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
