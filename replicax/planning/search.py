"""The search for the way in which a script trains best on given devices."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import math
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from replicax.checks import is_int
from replicax.compat.systems import kill_group
from replicax.contracts.shown import Shown, html_table, in_columns, joined
from replicax.errors import ArgumentError, PlanError
from replicax.planning.process import TIMEOUT_S, Script, called, planned
from replicax.planning.report import Plan, size, span
from replicax.planning.topologies import Topology
from replicax.planning.variations import Variation, smaller, variations
from replicax.program.call_checks import check_function
from replicax.typing import PyTree, PyTreeFunction

_SECONDS_BETWEEN_LOOKS = 0.1  # at the processes that plan
#: A process that plans takes about so much memory beside the compiler's.
_PROCESS_BYTES = 2 * 2**30


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A way in which the script could train.

    Attributes:
        variation: The strategy, and what else is changed.
        plan: Its plan; None where it cannot be planned.
        reason: Its place in the ranking in words.
    """

    variation: Variation
    plan: Plan | None
    reason: str

    @property
    def fits(self) -> bool:
        """Whether it can be planned, and the devices have the memory."""
        return self.plan is not None and self.plan.fits

    @property
    def lines(self) -> list[str]:
        """The lines for the script."""
        return self.variation.lines()

    def _order(self) -> tuple[float, ...]:
        """The key by which candidates are ranked: it fits, divides the work, and takes, sends and needs the least."""
        if self.plan is None:
            return (2.0,)
        if not self.fits:
            return (1.0, float(self.plan.needed))
        seconds = math.inf if self.plan.seconds is None else math.sqrt(math.prod(self.plan.seconds))
        return (
            0.0,
            seconds,
            float(_divides_nothing(self.plan)),
            float(_sent(self.plan)),
            float(self.plan.needed),
        )

    def as_dict(self) -> dict[str, Any]:
        """Returns all of it as JSON has it."""
        return {
            "variation": dataclasses.asdict(self.variation),
            "fits": self.fits,
            "reason": self.reason,
            "lines": self.lines,
            "plan": None if self.plan is None else self.plan.as_dict(),
        }


@dataclasses.dataclass(frozen=True)
class Search:
    """The ways that `rx.plan.search` has found, the best first.

    Attributes:
        on: The devices.
        candidates: The ways that were tried, ranked.
    """

    on: Topology
    candidates: tuple[Candidate, ...]

    @property
    def best(self) -> Candidate | None:
        """The best that fits; None where nothing does."""
        first = self.candidates[0]
        return first if first.fits else None

    def as_dict(self) -> dict[str, Any]:
        """Returns all of it as JSON has it."""
        return {"on": self.on.name, "candidates": [each.as_dict() for each in self.candidates]}

    def table(self) -> Shown:
        """Returns it as a table, for a terminal and for a notebook."""
        title = f"{len(self.candidates)} ways to train on {self.on.size} devices of {self.on.name}, the best first"
        rows = [(str(i), str(each.variation), each.reason) for i, each in enumerate(self.candidates, 1)]
        found = Shown(f"{title}\n{in_columns(rows)}", html_table(("", "variation", ""), rows, title))
        if self.best is None:
            return joined(found, Shown("Nothing fits: take more devices, or a smaller batch or model."))
        return joined(found, Shown("Write into the script:\n" + "\n".join(f"    {line}" for line in self.best.lines)))

    def __str__(self) -> str:
        return str(self.table())

    def _repr_html_(self) -> str:
        return self.table().html


def search(
    step: PyTreeFunction,
    args: Sequence[PyTree] = (),
    *,
    on: str,
    hosts: int | None = None,
    jobs: int | None = None,
    timeout: float = TIMEOUT_S,
) -> Search:
    """Returns the ways in which a function could train on devices that need not exist, ranked.

    It tries strategies, layouts, shapes of meshes and kinds of update, in processes side by side. A way that cannot
    fit by the exact bytes of its state is not compiled. Where temporaries do not fit, remat and accumulation are tried,
    too: where they do, either makes a step slower only.

    Args:
        step: A function that plays a script, as for `rx.plan(on=...)`. It is called in the scope of each strategy, and
            gets it by `rx.get_strategy()`.
        args: Its arguments, which are pickled.
        on: The devices, as for `rx.plan`.
        hosts: How many hosts they belong to, where `on` does not say it.
        jobs: How many processes plan at a time; by default as many as the machine has processors and memory for.
        timeout: The seconds that each of them may take.

    Raises:
        ArgumentError: `step` cannot be called; `jobs` is no number of at least 1.
        PlanError: The devices are unknown, or no way can be planned.
    """
    check_function("`step`", step)
    topology = Topology.of(on, hosts)
    return searched(lambda variation: called(step, args, variation.make), topology, jobs=jobs, timeout=timeout)


def searched(
    script: Callable[[Variation], Script],
    on: Topology,
    *,
    jobs: int | None = None,
    timeout: float = TIMEOUT_S,
    told: Callable[[int, int, Candidate], None] = lambda done, known, candidate: None,
) -> Search:
    """Returns the ways in which a script could train; `told` hears of each, with how many are done, and known so far.

    Raises:
        ArgumentError: `jobs` is no number of at least 1.
        PlanError: No way can be planned.
    """
    if jobs is not None and (not is_int(jobs) or jobs < 1):
        raise ArgumentError(f"`jobs` is a number of processes, an int of at least 1, got {jobs!r}.")

    def tried(variation: Variation) -> Candidate:
        try:
            (plan,) = planned(on, script(variation), timeout=timeout, variation=variation, running=running)
        except PlanError as error:
            return Candidate(variation, None, f"cannot be planned: {error}")
        return Candidate(variation, plan, reason_of(plan))

    found: list[Candidate] = []
    running: set[int] = set()
    with concurrent.futures.ThreadPoolExecutor(jobs or _jobs()) as pool:
        waiting = {pool.submit(tried, each) for each in variations(on.size, on.platform)}
        known = len(waiting)
        try:
            while waiting:
                done, waiting = concurrent.futures.wait(waiting, return_when=concurrent.futures.FIRST_COMPLETED)
                for each in done:
                    candidate = each.result()
                    found.append(candidate)
                    if _lacks_temporaries(candidate):
                        more = smaller(candidate.variation)
                        waiting |= {pool.submit(tried, variation) for variation in more}
                        known += len(more)
                    told(len(found), known, candidate)
        except BaseException:  # Ctrl-C, and SIGTERM to the command.
            pool.shutdown(wait=False, cancel_futures=True)
            while not all(each.done() for each in waiting):  # One may be about to start its process.
                for process in tuple(running):
                    kill_group(process)
                time.sleep(_SECONDS_BETWEEN_LOOKS)
            raise
    if all(each.plan is None for each in found):
        raise PlanError(f"No way of training could be planned: {found[0].reason.removeprefix('cannot be planned: ')}")
    return Search(on, tuple(sorted(found, key=Candidate._order)))


def reason_of(plan: Plan) -> str:
    """Returns in words why a plan is where it is in a ranking."""
    if not plan.fits:
        return plan.verdict.removesuffix(".").replace("It does not fit", "does not fit")
    takes = f"{span(plan.seconds)} a step (estimated), " if plan.seconds is not None else ""
    alone = ": every device computes all rows" if _divides_nothing(plan) else ""
    room = "" if plan.on.memory is None else f" of {size(plan.on.memory)}"
    return f"fits: {takes}{size(plan.needed)}{room}, sends {size(_sent(plan))}{alone}"


def _sent(plan: Plan) -> int:
    return sum(each.bytes for each in plan.collectives)


def _divides_nothing(plan: Plan) -> bool:
    """Returns whether every device computes everything: then no gradients are there to be added up."""
    return plan.on.size > 1 and not _sent(plan)


def _lacks_temporaries(candidate: Candidate) -> bool:
    """Returns whether a candidate does not fit, though its state would."""
    plan, variation = candidate.plan, candidate.variation
    if plan is None or plan.fits or plan.on.memory is None or variation.remat or variation.accumulation > 1:
        return False
    return plan.state_bytes + plan.batch <= plan.on.memory


def _jobs() -> int:
    try:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):  # Not every system tells.
        return 1
    return max(1, min(os.cpu_count() or 1, free // _PROCESS_BYTES))


__all__ = ["Candidate", "Search", "search"]
