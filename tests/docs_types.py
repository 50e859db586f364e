"""An editor's view of the documentation: `python -m tests.docs_types` checks the types of its Python with pyright.

Each page becomes a file with its blocks where they stand in the page, so that an error names the page's line.
`basedpyright` is pyright with its own Node.js, so that installing it needs nothing but the package index.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.test_docs import PAGES, ROOT, blocks_of

SETTINGS = {
    "typeCheckingMode": "standard",  # pyright's own default
    "pythonVersion": "3.11",
    "reportPossiblyUnboundVariable": "warning",  # as pyright has it: what a loop leaves behind is no error
    "extraPaths": [str(ROOT)],
}

# Keras comes without types: pyright takes the default of a parameter ("auto") for all that it accepts.
GUESSES_ABOUT_KERAS = ('to parameter "verbose" of type "str"',)


def module_of(page: Path) -> str:
    """Returns a page's Python as one module, line for line, without the blocks of class `no-types`."""
    lines = [""] * len(page.read_text().splitlines())
    for block in blocks_of(page):
        if "no-types" in block.info:
            continue  # For another library, or with names that the page does not define.
        code = block.code.splitlines()
        lines[block.line - 1 : block.line - 1 + len(code)] = code
    return "\n".join(lines) + "\n"


def errors_in(modules: Mapping[str, str]) -> list[str]:
    """Returns pyright's errors in some modules: by what they are called, their code."""
    with tempfile.TemporaryDirectory() as folder:
        files = {}
        for number, (name, code) in enumerate(modules.items()):
            file = Path(folder).resolve() / f"module_{number}.py"
            file.write_text(code)
            files[str(file)] = name
        (Path(folder) / "pyrightconfig.json").write_text(json.dumps(SETTINGS))
        command = [sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable]
        done = subprocess.run([*command, "--project", folder], capture_output=True, text=True, check=False)
    try:
        report = json.loads(done.stdout)
    except json.JSONDecodeError as error:
        raise RuntimeError(f"pyright did not run:\n{done.stdout}{done.stderr}") from error
    if report["summary"]["filesAnalyzed"] < len(modules):
        raise RuntimeError(f"pyright looked at {report['summary']['filesAnalyzed']} of {len(modules)} modules.")
    return [
        f"{files[found['file']]}:{found['range']['start']['line'] + 1}: {found['message']} ({found.get('rule')})"
        for found in report["generalDiagnostics"]
        if found["severity"] == "error" and not any(guess in found["message"] for guess in GUESSES_ABOUT_KERAS)
    ]


def main() -> None:
    """Prints the errors, and ends with 1 if there are any."""
    pages = [page for page in PAGES if blocks_of(page)]
    errors = errors_in({str(page.relative_to(ROOT)): module_of(page) for page in pages})
    print(*errors, f"pyright: {len(errors)} errors in the Python of {len(pages)} pages", sep="\n")
    sys.exit(bool(errors))


if __name__ == "__main__":
    main()
