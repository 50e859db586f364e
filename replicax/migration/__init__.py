"""Where TensorFlow's names have gone: the data, and what is said to someone who asks for one of them."""

from replicax.migration.asking import Advised, AdvisedType, advice_for, not_found, resolved
from replicax.migration.names import NAMES, Row

__all__ = ["NAMES", "Advised", "AdvisedType", "Row", "advice_for", "not_found", "resolved"]
