"""The counter of names without example, and what the reference leaves out."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from tests.examples_of_names import examples_of_names, names_never_run, names_without_example
from tests.test_public_api import public_names

ROOT = Path(__file__).resolve().parent.parent

# These need other processes, or files that other libraries write: their code is shown and skipped.
NEED_MORE_THAN_ONE_PROCESS = {
    "ParameterServerStrategy",
    "checkpoint.tensorflow.TensorFlowCheckpoint",
    "checkpoint.tensorflow.open_checkpoint",
    "cluster_resolver.GCEClusterResolver",
    "coordinator.ClusterCoordinator",
    "coordinator.PerWorkerIterator",
    "coordinator.PerWorkerValues",
    "coordinator.RemoteValue",
    "coordinator.get_current_worker_index",
    "data.from_hugging_face",
    "data.read_array_record",
    "data.read_images",
    "data.read_parquet",
    "data.read_webdataset",
    "estimator.train_and_evaluate",
    "keras.SidecarEvaluator",
    "testing.ElasticJob",
    "testing.local_cluster",
    "testing.run_workers",
}


class Undocumented: ...


class Shown:
    """Has an example.

    Example:
        >>> 1 + 1
        2
    """


class Inherits(Shown): ...


def test_a_name_without_code_is_found_and_a_class_does_not_inherit_an_example():
    from tests.examples_of_names import _examples_of

    assert [bool(_examples_of(value)) for value in (Undocumented, Shown, Inherits)] == [False, True, False]
    assert names_without_example({"a": [], "b": _examples_of(Shown)}) == ["a"]


def test_an_example_is_skipped_only_where_it_needs_other_processes():
    """A new name's example runs. One that cannot is added here on purpose."""
    examples = examples_of_names()
    assert names_without_example(examples) == []
    assert set(names_never_run(examples)) - NEED_MORE_THAN_ONE_PROCESS == set()


def internal_names() -> list[str]:
    """Returns the names that mkdocs.yml keeps out of the reference."""
    text = (ROOT / "mkdocs.yml").read_text()
    return [name for group in re.findall(r'"!\^\(([a-z_|]+)\)\$"', text) for name in group.split("|")]


def test_each_name_that_the_reference_leaves_out_exists():
    members = {member for _, value in public_names() if inspect.isclass(value) for member in dir(value)}
    assert len(internal_names()) > 10
    assert [name for name in internal_names() if name not in members] == []


def test_no_page_tells_users_to_call_what_the_reference_leaves_out():
    call = re.compile(rf"\.({'|'.join(internal_names())})\b")
    pages = [page for page in (ROOT / "docs").rglob("*.md") if page.name != "architecture.md"]
    assert [f"{page.name}: {found.group()}" for page in pages for found in call.finditer(page.read_text())] == []
