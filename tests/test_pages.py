"""What the pages say is so: names, images, states of the work; and their code fits beside a column of contents."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import json
import re
import tomllib
from collections.abc import Iterator

import replicax as rx
from tests.test_docs import PAGES, ROOT, blocks_of

COLUMNS = 88
# Its blocks are what `replicax migrate` reads and writes, to the letter (tests/migrate/test_leaving_guide.py).
OF_THE_CONVERTER = "docs/guides/leaving-tf-distribute.md"

_NAME = re.compile(r"(?<![\w./-])(?:rx|replicax)((?:\.[A-Za-z_]\w*)+)(?![\w/*])")
_CODE = re.compile(r"^(`{3,})[^\n]*\n.*?^\1$|`[^`\n]+`", re.MULTILINE | re.DOTALL)
_IMAGE = re.compile(r"!\[(?P<alt>[^\]]*)\]\((?P<file>[^)\s]+)\)|<img[^>]*\bsrc=\"(?P<src>[^\"]+)\"")
# A name of the package that stands alone: `rx.function`, `MirroredStrategy(...)`.
_QUOTED = re.compile(r"`(?:rx\.)?([A-Za-z_]\w*(?:\.\w+)*)(?:\([^`]*\))?`")
_UNDONE = re.compile(
    r"\b(is|are|was|will be)?\s*\b(planned|not yet|coming soon|to come later|to be written)\b", re.IGNORECASE
)
# What is no name of the package, though it is written like one.
_OTHERS = re.compile(r"^(\w+\.)*(py|pyi|md|yaml|json|log|toml|github|egg)\b|^(\w+\.)?name$")

TEXTS = {str(page.relative_to(ROOT)): page.read_text() for page in PAGES}
TEXTS |= {
    str(notebook.relative_to(ROOT)): "\n\n".join(
        "".join(cell["source"]) if cell["cell_type"] == "markdown" else f"```python\n{''.join(cell['source'])}\n```"
        for cell in json.loads(notebook.read_text())["cells"]
    )
    for notebook in sorted((ROOT / "docs").rglob("*.ipynb"))
}


def names_in(text: str) -> set[str]:
    """Returns the names of the package in a page's code, without `rx.`."""
    code = "\n".join(match[0] for match in _CODE.finditer(text))
    return {match[1].removeprefix(".") for match in _NAME.finditer(code)}


@functools.cache
def exists(name: str) -> bool:
    """Returns whether `rx.<name>` is there, or is answered with what to use instead."""
    value: object = rx
    for part in name.split("."):
        if isinstance(value, property | functools.cached_property):
            return True  # What it gives is known at run time alone.
        try:
            value = getattr(value, part)
        except AttributeError as error:
            if inspect.isclass(value):
                return any(re.search(rf"\b(self\.)?{part}\b *[:=]", source) for source in _sources(value))
            return _is_module(f"replicax.{name}") or bool(_ADVICE.search(str(error)))
    return True


def _is_module(name: str) -> bool:
    """Returns whether a module is there that nobody imports: a command such as replicax.tools.plots.membership."""
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # nor is its package
        return False


def _sources(cls: type) -> list[str]:
    """Returns the code of a class and of those that it comes from: attributes of objects are named there."""
    return [inspect.getsource(base) for base in cls.__mro__ if base.__module__.startswith("replicax")]


_ADVICE = re.compile(r"TensorFlow|tf\.|instead|use | is rx\.| is not in replicax")


def undone_in(text: str) -> list[str]:
    """Returns the sentences that call an existing public name planned, or not yet there."""
    sentences = re.split(
        r"(?<=[.!?|:])\s+|\n\s*\n", re.sub(r"^(`{3,}).*?^\1$", "", text, flags=re.MULTILINE | re.DOTALL)
    )
    return [
        sentence
        for sentence in sentences
        if _UNDONE.search(sentence)
        and any(exists(name) for name in _QUOTED.findall(sentence) if not _OTHERS.match(name))
    ]


def test_names_exist():
    missing = [
        f"{page}: rx.{name}"
        for page, text in TEXTS.items()
        for name in sorted(names_in(text))
        if not _OTHERS.match(name) and not exists(name)
    ]
    assert not missing, "These names are not there:\n" + "\n".join(missing)


def test_nothing_that_is_there_is_called_planned():
    undone = [f"{page}: {sentence}" for page, text in TEXTS.items() for sentence in undone_in(text)]
    assert not undone, "\n".join(undone)


def test_images_are_there_and_have_a_text():
    faults = [f"{page}: {fault}" for page, text in TEXTS.items() for fault in faults_of_images(page, text)]
    assert not faults, "\n".join(faults)


def faults_of_images(page: str, text: str) -> Iterator[str]:
    for image in _IMAGE.finditer(_CODE.sub("", text)):
        file = (image["file"] or image["src"]).partition("#")[0]  # The theme shows what ends in #only-dark in the dark.
        if file.startswith("http"):
            yield f"{file} would be a request to another site"
        elif not (ROOT / page).parent.joinpath(file).is_file():
            yield f"{file} is missing"
        if not (image["src"] or image["alt"]):
            yield f"{file} has no alternative text"


def test_code_fits_into_its_column():
    wide = [
        f"{page.relative_to(ROOT)}:{block.line + number}: {len(line)} columns"
        for page in PAGES
        if page.parent != ROOT and str(page.relative_to(ROOT)) != OF_THE_CONVERTER
        for block in blocks_of(page)
        for number, line in enumerate(block.code.splitlines())
        if len(line) > COLUMNS
    ]
    assert not wide, "\n".join(wide)


def test_the_repository_has_one_address():
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    site = (ROOT / "mkdocs.yml").read_text()
    assert f"repo_url: {urls['Repository']} " in site
    assert f"site_url: {urls['Documentation']}\n" in site


def test_the_checks_find_what_they_look_for():
    assert names_in("See `rx.MirroredStrategy()`, not rx.words.\n```py\nreplicax.nothing(1)\n```\n`docs/rx.py`") == {
        "MirroredStrategy",
        "nothing",
    }
    assert exists("MirroredStrategy.run")
    assert exists("keras.BackupAndRestore")
    assert exists("CheckpointManager.checkpoint")
    assert exists("job.membership_history")
    assert not exists("no_such_name")
    assert not exists("job.no_such_module")
    assert not exists("MirroredStrategy.no_such_name")
    assert undone_in("One process only; `MultiWorkerMirroredStrategy` is planned. More.") != []
    assert undone_in("A step that is `planned_by_you` is planned. `rx.function` has not changed.") == []
