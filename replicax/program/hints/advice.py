"""Advice about a step that runs, but hardly computes what its author means."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Protocol

from replicax.contracts.strategy import StrategyBase, or_null
from replicax.contracts.variable_access import VariableLike, name_of
from replicax.errors import VariableError
from replicax.program.hints.gradient_scale import LocalMean
from replicax.program.hints.metric_totals import NotSummable

_log = logging.getLogger(__name__)
_SHOWN = 3  # names in a message


class _Advised(Protocol):
    @property
    def advice(self) -> set[str]:
        """The advice that users have had."""


def advise(strategy: _Advised | None, about: str, text: str) -> None:
    """Logs a warning, once for each strategy and `about`: a step is traced for each shape of its batches."""
    said = (strategy or or_null(None)).advice
    if about not in said:
        _log.warning("%s", text)
        said.add(about)


def advise_of_zeros(strategy: StrategyBase | None, name: str, variables: Iterable[VariableLike]) -> None:
    """Says that a function differentiates with respect to values of variables that its loss does not take."""
    names = ", ".join(repr(name_of(variable)) for variable in variables)
    advise(
        strategy,
        f"the derivatives of {name}",
        f"In {name}, JAX differentiates with respect to values of variables ({names}), but the function that is "
        "differentiated reads the variables themselves, and those count as constants there: the derivatives are zero. "
        "Use rx.value_and_grad(loss_fn, variables), or let the function compute with the values that it is given "
        "(model.stateless_call).",
    )


def advise_of_masks(strategy: StrategyBase | None) -> None:
    """Says that the random numbers of micro-batches are not those of one device."""
    advise(
        strategy,
        "random numbers in micro-batches",
        "A loss under rx.accumulate_gradients draws random numbers for its rows. Each replica makes micro-batches of "
        "its own rows, so a micro-batch has other rows where there are more or fewer replicas: in spite of "
        "random_numbers='per_row' the numbers that a row gets (a dropout mask, say) depend on the number of replicas. "
        "They are as random as others.",
    )


def advise_of_uncompressed(strategy: StrategyBase | None, compression: object) -> None:
    """Says that `Model.fit` sends gradients as they are."""
    advise(
        strategy,
        "compression in fit",
        f"The strategy's compression={compression!r} has no effect in Model.fit: its step is one program over all "
        "devices, in which XLA places the sums, and gradients travel as they are. A custom loop with "
        "rx.value_and_grad in strategy.run compresses them.",
    )


def advise_of_local_mean(
    strategy: StrategyBase | None, name: str, found: LocalMean, replicas: int, is_distributed: bool
) -> None:
    """Says that the gradients of a step are too large by the number of replicas."""
    if not is_distributed:
        advise(
            strategy,
            f"the rows of {name}",
            f"The gradients in {name} are {replicas} times too large: none of its arguments is a distributed batch, so "
            f"each of {replicas} replicas computes the mean over all rows, and rx.value_and_grad sums their gradients. "
            "Pass batches of strategy.distribute_dataset(...), and divide by the global number of rows: "
            "rx.compute_average_loss.",
        )
        return
    how = "the number that it computes from its own rows" if found.divisor is None else f"{found.divisor:g}"
    advise(
        strategy,
        f"the loss of {name}",
        f"The gradients in {name} are {replicas} times too large: its loss is a mean over each replica's own rows (the "
        f"sum over them is divided by {how}), and rx.value_and_grad sums the gradients of {replicas} replicas, as "
        "jax.grad does with respect to what is equal on all of them; a mean over replicas afterwards changes nothing. "
        "Divide the sum by the global number of rows: rx.compute_average_loss of the loss per example (of a Keras loss "
        'with reduction="none"). Or, if all replicas have equally many, ask for aggregation="mean" in '
        "rx.value_and_grad.",
    )


def advise_of_parted(strategy: StrategyBase | None, name: str, arguments: Sequence[str]) -> None:
    """Says that a state has become one of each replica's own, which trains as many models as there are replicas."""
    shown = ", ".join(arguments[:_SHOWN]) + (f" and {len(arguments) - _SHOWN} more" if arguments[_SHOWN:] else "")
    advise(
        strategy,
        f"the replicas of {name}",
        f"{name} was first called with one value of {shown} for all replicas; now each replica has its own, computed "
        "from its own rows. If that decides what is trained, there are as many models as replicas. Make it one in the "
        "step: rx.get_replica_context().all_reduce('mean', value). Ignore this if each replica shall have its own.",
    )


def advise_of_total(strategy: StrategyBase | None, name: str, variable: VariableLike, found: NotSummable) -> None:
    """Says that a metric's total may be wrong; raises an error if it certainly is."""
    text = (
        f"In {name}, the metric's variable {name_of(variable)!r} {found.reason}. Replicas may only add to a "
        "metric's variable, since their parts of it are summed when the step ends. Keep parts that can be added and "
        "compute the result from them; or keep an rx.Variable with the aggregation that is meant; or compute the "
        "metric outside of the replica function, from strategy.gather of what that returns; or use Model.fit and "
        "Model.evaluate, where it sees the global batch."
    )
    if found.certain:
        raise VariableError(text)
    advise(
        strategy,
        f"the total {name_of(variable)} of {name}",
        text + " (Ignore this if the sum over replicas is what is meant.)",
    )


def advise_of_changed_object(strategy: _Advised | None, name: str, where: str) -> None:
    """Says that a function is compiled anew because it would find another thing outside of its arguments."""
    advise(
        strategy,
        f"what {name} finds at {where}",
        f"{name} is compiled again each time that {where} is another one: what a step finds outside of its arguments, "
        "or in an object among them that is no container, is fixed in its program. Pass it as an argument, or keep it "
        "in an rx.Variable.",
    )


def advise_of_lost_state(strategy: _Advised | None, name: str, where: str) -> None:
    """Says that what a function leaves outside of itself is lost: its Python runs when it is traced, and not later."""
    advise(
        strategy,
        f"what {name} leaves at {where}",
        f"{name} sets {where}, an array that it also reads: that happens while it is traced, and the next call begins "
        f"with the array of that time again. Return the new value and assign it outside, or keep {where} in an "
        "rx.Variable.",
    )


def advise_of_whole_state(strategy: StrategyBase | None, name: str, elements: int) -> None:
    """Says that a strategy that shards has nothing to shard: a state in plain JAX that every device holds whole."""
    advise(
        strategy,
        f"the state of {name}",
        f"{name} takes and returns arrays with {elements:,} elements that every device holds whole, though "
        f"{type(strategy).__name__} shards. Place the state first: state = strategy.replicate(state) cuts it by the "
        "strategy's rule, and each step keeps it so (strategy.explain(state)).",
    )


def advise_of_captured(strategy: StrategyBase | None, name: str) -> None:
    """Says that a step computes with a per-replica value that is no argument."""
    advise(
        strategy,
        f"what {name} captures",
        f"{name} has captured a per-replica value (a batch, or what another step returned) instead of getting it as an "
        "argument: it is a constant of the program, which is compiled again for another one. Pass it: "
        "strategy.run(step, args=(value,)).",
    )
