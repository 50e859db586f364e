"""What a strategy tells its users about a step that runs, but hardly computes what they mean."""

from __future__ import annotations

import logging
from typing import Any

from replicax.program.scales import LocalMean

_log = logging.getLogger(__name__)


def advise(strategy: Any, about: str, text: str) -> None:
    """Logs a warning, once for each strategy and `about`: a step is traced for each shape of its batches."""
    if about not in strategy.advice:
        strategy.advice.add(about)
        _log.warning("%s", text)


def advise_of_local_mean(strategy: Any, name: str, found: LocalMean, replicas: int) -> None:
    """Says that the gradients of a step are too large by the number of replicas."""
    how = "the number that it computes from its own rows" if found.divisor is None else f"{found.divisor:g}"
    advise(
        strategy,
        f"the loss of {name}",
        f"The gradients in {name} are {replicas} times too large: its loss is a mean over each replica's own rows (the "
        f"sum over them is divided by {how}), and rx.value_and_grad sums the gradients of {replicas} replicas. Divide "
        "the sum by the global number of rows: rx.compute_average_loss of the loss per example (of a Keras loss with "
        'reduction="none"). Or, if all replicas have equally many, ask for aggregation="mean" in rx.value_and_grad.',
    )
