"""A certificate: what was compared, with what, and what was found; as JSON, and as a page to read."""

from __future__ import annotations

import hashlib
import html
import json
import math
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from replicax.errors import ArgumentError
from replicax.tools.certifying.comparing import LAST_BITS, MARGIN, Difference

#: The version of the format.
_FORMAT = 1
#: Limits that each certificate states.
UNKNOWN = (
    "Only the first steps were compared, on virtual CPU devices.",
    "A mistake that one device makes alike is no difference.",
    "A difference within the tolerance is not seen.",
)


class Outcome(NamedTuple):
    """The findings on one target.

    Attributes:
        target: Such as `"mirrored:8"`.
        replicas: How many there were.
        mesh: The mesh, as text.
        steps: How many steps the script made there.
        compared: How many tensors were compared.
        left_out: What could not be compared, since one of the runs has it not, or not whole.
        largest: The largest difference, as a part of its tolerance; over 1 is a difference.
        difference: The first tensor that differs; None if there is none.
    """

    target: str
    replicas: int
    mesh: str
    steps: int
    compared: int
    left_out: tuple[str, ...]
    largest: float
    difference: Difference | None

    def __str__(self) -> str:
        if self.difference is not None:
            return f"{self.target}: {self.difference}"
        out = f"; not compared: {', '.join(self.left_out)}" if self.left_out else ""
        return (
            f"{self.target}: the numbers of one device: {self.compared} tensors of {self.steps} steps, at most "
            f"{self.largest:.0%} of what rounding explains{out}"
        )


class Certificate(NamedTuple):
    """The result of `rx.certify`.

    Attributes:
        script: The path of the script.
        script_digest: The SHA-256 of its text.
        arguments: Its arguments.
        steps: How many steps were compared.
        dtype: The lowest dtype of the products of a step.
        perturbations: The runs on one device that say what rounding explains.
        versions: Of Python and libraries.
        outcomes: What was found on each target.
    """

    script: str
    script_digest: str
    arguments: tuple[str, ...]
    steps: int
    dtype: str
    perturbations: tuple[str, ...]
    versions: Mapping[str, str]
    outcomes: tuple[Outcome, ...]

    @property
    def is_certified(self) -> bool:
        """Whether no target differs from one device."""
        return all(outcome.difference is None for outcome in self.outcomes)

    def write(self, path: Path) -> None:
        """Writes the certificate: JSON at `path`, and a page to read beside it, with the suffix `.html`."""
        fields = self._as_json()
        text = json.dumps({**fields, "digest": _digest(fields)}, indent=1) + "\n"
        path.write_text(text, encoding="utf-8")
        path.with_suffix(".html").write_text(self.page(), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Certificate:
        """Reads a certificate, and checks its digest.

        Raises:
            ArgumentError: There is no such file, it is no certificate, or it was changed after it was written.
        """
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            digest, made_by = found.pop("digest"), found.pop("format")
            if made_by != _FORMAT:
                raise ArgumentError(f"{path} has the format {made_by!r}, and this replicax reads {_FORMAT}.")
            certificate = cls(
                found["script"], found["script_digest"], tuple(found["arguments"]), found["steps"], found["dtype"],
                tuple(found["perturbations"]), found["versions"], tuple(map(_outcome, found["outcomes"])),
            )  # fmt: skip
        except OSError as error:
            raise ArgumentError(
                f"{path} cannot be read: {error.strerror}. Name a file of `replicax certify`."
            ) from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ArgumentError(f"{path} is no certificate of `replicax certify` ({error!r}).") from error
        if digest != _digest({**found, "format": made_by}):
            raise ArgumentError(f"{path} was changed after it was written: its digest is another one. Certify again.")
        return certificate

    def _as_json(self) -> dict[str, Any]:
        outcomes = [
            {**outcome._asdict(), "difference": outcome.difference and _finite(outcome.difference._asdict())}
            for outcome in self.outcomes
        ]
        tolerance = {"margin": MARGIN, "last_bits": LAST_BITS}
        return {"format": _FORMAT, **self._asdict(), "outcomes": outcomes, "tolerance": tolerance, "unknown": UNKNOWN}

    def page(self) -> str:
        """Returns the certificate as a page of HTML."""
        rows = "".join(
            f"<tr><td>{_text(outcome.target)}</td><td>{_text(outcome.mesh)}</td><td>{outcome.steps}</td>"
            f"<td>{outcome.compared}</td><td>{outcome.largest:.1%}</td>"
            f"<td>{_text('the same' if outcome.difference is None else str(outcome.difference))}</td>"
            f"<td>{_text(', '.join(outcome.left_out))}</td></tr>"
            for outcome in self.outcomes
        )
        verdict = (
            "These are the numbers of one device." if self.is_certified else "These are not the numbers of one device."
        )
        facts = {
            "Script": f"{self.script} {' '.join(self.arguments)}",
            "SHA-256 of the script": self.script_digest,
            "Steps": str(self.steps),
            "Products in": self.dtype,
            "Tolerance": f"{MARGIN:g} times the spread of {'; '.join(self.perturbations)}; and {LAST_BITS:g} last bits",
            "Versions": ", ".join(f"{name} {number}" for name, number in self.versions.items()),
            "Digest": _digest(self._as_json()),
        }
        listed = "".join(f"<dt>{_text(name)}</dt><dd>{_text(value)}</dd>" for name, value in facts.items())
        heads = ("Target", "Mesh", "Steps", "Tensors", "Largest part of the tolerance", "Verdict", "Not compared")
        return (
            '<!doctype html><html lang="en"><meta charset="utf-8"><title>replicax certificate</title><style>'
            "body{font:16px/1.5 system-ui;max-width:70rem;margin:2rem auto;padding:0 1rem}"
            "table{border-collapse:collapse}td,th{border:1px solid #bbb;padding:.3rem .6rem;text-align:left;"
            "vertical-align:top}dt{font-weight:bold}dd{margin:0 0 .5rem;overflow-wrap:anywhere}</style>"
            f"<h1>{verdict}</h1><table><tr>{''.join(f'<th>{head}</th>' for head in heads)}</tr>{rows}</table>"
            f"<h2>Of what</h2><dl>{listed}</dl><h2>What it does not know</h2>"
            f"<ul>{''.join(f'<li>{_text(each)}</li>' for each in UNKNOWN)}</ul></html>\n"
        )


def script_digest(script: Path) -> str:
    """Returns the SHA-256 of a script."""
    return hashlib.sha256(script.read_bytes()).hexdigest()


def versions() -> dict[str, str]:
    """Returns the versions of what computes."""
    return {"python": platform.python_version()} | {
        name: version(name) for name in ("replicax", "jax", "jaxlib", "keras", "numpy")
    }


def _text(value: str) -> str:
    return html.escape(value)


def _digest(fields: Mapping[str, Any]) -> str:
    canonical = json.dumps(fields, sort_keys=True, separators=(",", ":"), default=list)
    return hashlib.sha256(canonical.encode()).hexdigest()


def _finite(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns fields as JSON can hold them, which knows no infinity."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in fields.items()
    }


def _outcome(fields: Mapping[str, Any]) -> Outcome:
    difference = fields["difference"]
    if difference is not None:
        infinite = {name: math.inf for name in ("distance", "tolerance") if difference[name] is None}
        difference = Difference(**{**difference, **infinite})
    return Outcome(**{**fields, "left_out": tuple(fields["left_out"]), "difference": difference})


def same_verdicts(before: Sequence[Outcome], now: Sequence[Outcome]) -> list[str]:
    """Returns a sentence for each target whose verdict is another one than before."""
    return [
        f"{one.target} was {_verdict(one)}, and is {_verdict(other)}."
        for one, other in zip(before, now, strict=True)
        if _verdict(one) != _verdict(other)
    ]


def _verdict(outcome: Outcome) -> str:
    found = outcome.difference
    if found is None:
        return "certified"
    return f"different from one device in {found.kind} {found.name!r} of step {found.step}"
