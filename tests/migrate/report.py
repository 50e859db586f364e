"""Converts the scripts of the corpus, runs them on one and on eight devices, and compares with TensorFlow.

    python tests/migrate/report.py [script ...]

It needs no TensorFlow: what TensorFlow computed is in tests/migrate/recordings. A script counts as converted without an
edit if its losses were compared; those that compute no loss are run, and counted by themselves.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from replicax.errors import ReplicaxError
from replicax.tensorflow.codemod.conversion import convert
from replicax.tensorflow.proof.comparing import first_difference, loss_differences
from replicax.tensorflow.proof.running import Run, RunFailedError, on_replicax
from tests.migrate.corpus_scripts import Script, beside, scripts

LIMIT_S = 300.0
PAGE = Path(__file__).with_name("corpus") / "README.md"
BEGIN = "<!-- Table: python tests/migrate/report.py --write -->"
END = "<!-- End of the table -->"


class Outcome(NamedTuple):
    """What became of one script.

    Attributes:
        script: The script.
        edits: The places that need a hand edit, as the conversion reports them.
        problem: What is wrong although nothing was reported; empty if nothing is.
        difference: The largest relative difference of a loss, where there are losses to compare.
    """

    script: Script
    edits: tuple[str, ...] = ()
    problem: str = ""
    difference: float | None = None

    @property
    def is_converted(self) -> bool:
        return not self.edits and not self.problem

    @property
    def is_compared(self) -> bool:
        """Whether it is converted, and its losses are those of TensorFlow; the other converted scripts only run."""
        return self.is_converted and self.difference is not None

    @property
    def is_changed_silently(self) -> bool:
        return not self.edits and bool(self.problem)

    def summary(self) -> str:
        if self.problem:
            return f"CHANGED SILENTLY: {self.problem}"
        if self.edits:
            return f"{len(self.edits)} by hand: {self.edits[0]}"
        compared = "no losses" if self.difference is None else f"losses within {self.difference:.0e}"
        return f"converted without a hand edit, {compared}"


def outcome(script: Script, replicas: Sequence[int] | None = None, keep: Path | None = None) -> Outcome:
    """Converts a script and, if the conversion reports no hand edit, runs it and compares with TensorFlow."""
    try:
        conversion = convert(script.path.read_text(), script.path.name)
    except ReplicaxError as error:
        return Outcome(script, (f"refused: {error}",))
    except Exception as error:  # the report shows every script; one that the codemod dies of is a bug to see
        return Outcome(script, problem=f"the conversion failed with {type(error).__name__}: {error}")
    if keep is not None:
        (keep / script.path.name).write_text(conversion.after)
    if conversion.edits:
        return Outcome(script, tuple(f"line {e.line}: {e.name}: {e.reason}" for e in conversion.edits))
    with tempfile.TemporaryDirectory() as folder:
        converted = beside(Path(folder)) / script.path.name
        converted.write_text(conversion.after)
        return _compared(script, converted, [each for each in script.replicas if each in (replicas or script.replicas)])


def _compared(script: Script, converted: Path, replicas: Sequence[int]) -> Outcome:
    largest = None
    for count in replicas:
        try:
            found = on_replicax(
                Run(converted, script.arguments, script.environment, devices=count, limit_s=LIMIT_S),
            )
        except RunFailedError as error:
            return Outcome(script, problem=str(error)[-1500:])
        if found.error:
            return Outcome(script, problem=f"on {count}: {found.error[-1500:]}")
        expected = script.recording(count)
        if expected is None:
            return Outcome(script, problem=f"on {count} it runs, and there is no recording to compare with")
        difference = first_difference(expected, found)
        if difference is not None:
            return Outcome(script, problem=f"on {count}: {difference.detail}")
        if expected.objectives:
            largest = max([largest or 0.0, *loss_differences(expected, found)])
    return Outcome(script, difference=largest)


def table(outcomes: Sequence[Outcome]) -> str:
    """Returns the outcomes as a table in Markdown."""
    rows = ["| Script | From | Hand edits |", "| --- | --- | --- |"]
    rows += [
        f"| [{each.script.name}]({each.script.url}) | {each.script.repository} | {_cell(each)} |" for each in outcomes
    ]
    return "\n".join(rows)


def _cell(each: Outcome) -> str:
    if each.is_converted:
        return "none"
    if not each.edits:
        return "changed silently"
    first = each.edits[0].split(": ", 1)[1] if each.edits[0].startswith("line ") else each.edits[0]
    more = f" and {len(each.edits) - 1} more" if len(each.edits) > 1 else ""
    return f"{first}{more}".replace("|", "\\|").replace("\n", " ")


def edits_only(script: Script) -> Outcome:
    """Converts a script and looks at nothing but the hand edits that the conversion asks for."""
    try:
        conversion = convert(script.path.read_text(), script.path.name)
    except ReplicaxError as error:
        return Outcome(script, (f"refused: {error}",))
    return Outcome(script, tuple(f"line {e.line}: {e.name}: {e.reason}" for e in conversion.edits))


def page_with(text: str, outcomes: Sequence[Outcome]) -> str:
    """Returns the page's text with another table."""
    head, rest = text.split(BEGIN, 1)
    _, tail = rest.split(END, 1)
    converted = sum(each.is_converted for each in outcomes)
    counts = f"{len(outcomes)} scripts, {converted} of them converted without a hand edit:"
    return f"{head}{BEGIN}\n\n{counts}\n\n{table(outcomes)}\n\n{END}{tail}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="the scripts; all of them without")
    parser.add_argument("--replicas", type=int, action="append", help="how many devices")
    parser.add_argument("--keep", type=Path, help="a folder for the converted scripts")
    parser.add_argument("-j", "--jobs", type=int, default=1)
    parser.add_argument("--write", action="store_true", help="only convert, and write the table of corpus/README.md")
    options = parser.parse_args()
    if options.write:
        PAGE.write_text(page_with(PAGE.read_text(), [edits_only(each) for each in scripts()]))
        return 0
    if options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
        beside(options.keep)
    wanted = [each for each in scripts() if each.name in options.names or not options.names]
    with ThreadPoolExecutor(options.jobs) as pool:
        outcomes = []
        for each in pool.map(lambda script: outcome(script, options.replicas, options.keep), wanted):
            outcomes.append(each)
            print(f"{each.script.name}: {each.summary()}", flush=True)
    print("\n" + table(outcomes) + "\n")
    results(outcomes)
    return 0 if not any(each.is_changed_silently for each in outcomes) else 1


def results(outcomes: Sequence[Outcome]) -> None:
    """Prints the figures."""
    compared = [each for each in outcomes if each.is_compared]
    differences = [each.difference for each in compared if each.difference is not None]
    print(f"RESULT scripts_total {len(outcomes)}")
    print(f"RESULT scripts_converted_unedited {len(compared)}")
    print(f"RESULT scripts_compared_in_float64 {sum('JAX_ENABLE_X64' in each.script.environment for each in compared)}")
    print(f"RESULT scripts_without_losses_that_run {sum(each.is_converted for each in outcomes) - len(compared)}")
    print(f"RESULT scripts_changed_silently {sum(each.is_changed_silently for each in outcomes)}")
    print(f"RESULT largest_loss_difference {max(differences, default=0.0):.2e}")


if __name__ == "__main__":
    sys.exit(main())
