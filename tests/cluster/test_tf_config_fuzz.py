"""Malformed TF_CONFIGs by the thousand: each is a ClusterError, nothing else, and none is taken in silence."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from replicax.cluster import ClusterConfig, TFConfigClusterResolver, detect_cluster
from replicax.errors import ClusterError
from tests.cluster.documents import BREAK, broken_documents, is_valid, json_values, valid_documents

EXAMPLES_FOR_EACH_WAY = 50  # 33 ways: 1,650 malformed documents
quick = settings(database=None, derandomize=True, suppress_health_check=list(HealthCheck))


def read(text: str) -> ClusterConfig:
    return TFConfigClusterResolver(environ={"TF_CONFIG": text}).config()


def test_there_are_more_than_a_thousand():
    assert len(BREAK) * EXAMPLES_FOR_EACH_WAY > 1000


@pytest.mark.daily(5)
@pytest.mark.parametrize("how", BREAK)
def test_a_broken_document_is_refused(how: str):
    seen = 0

    @settings(quick, max_examples=EXAMPLES_FOR_EACH_WAY)
    @given(broken_documents(how))
    def check(document: Any) -> None:
        nonlocal seen
        seen += 1
        text = json.dumps(document)
        with pytest.raises(ClusterError) as error:
            read(text)
        assert error.value.field.startswith("TF_CONFIG") or error.value.field.startswith("task")
        assert str(error.value).startswith(error.value.field)
        with pytest.raises(ClusterError):
            detect_cluster({"TF_CONFIG": text})

    check()
    assert seen >= EXAMPLES_FOR_EACH_WAY


@settings(quick, max_examples=200)
@given(valid_documents())
def test_a_valid_document_comes_back_as_it_was(document: dict[str, Any]):
    config = read(json.dumps(document))
    assert read(json.dumps(config.as_dict())) == config
    written = config.as_dict()
    assert written["task"] == {"type": document["task"]["type"], "index": int(document["task"]["index"])}
    lists = {job: [*jobs.values()] if isinstance(jobs, dict) else jobs for job, jobs in document["cluster"].items()}
    assert written["cluster"] == lists
    assert written.get("rpc_layer") == document.get("rpc_layer")


@st.composite
def strange_documents(draw: st.DrawFn) -> Any:
    """Anything that JSON can say, most of it shaped nearly like a cluster of one task."""
    tasks = st.one_of(json_values, st.just(["a:1"]), st.just({"0": "a:1"}))
    jobs = st.sampled_from(["worker", "chief", "ps", "evaluator", "master", ""])
    cluster = st.one_of(json_values, st.dictionaries(jobs, tasks, max_size=2))
    index = st.one_of(json_values, st.sampled_from([0, "0", 1, "1", -1, True, 0.0]))
    task = st.one_of(json_values, st.fixed_dictionaries({}, optional={"type": jobs, "index": index}))
    whole = st.fixed_dictionaries({}, optional={"cluster": cluster, "task": task})
    return draw(st.one_of(whole, whole, whole, json_values))


@pytest.mark.nightly
@settings(quick, max_examples=500)
@given(strange_documents())
def test_random_json_is_taken_only_if_it_is_valid(document: Any):
    try:
        config = read(json.dumps(document))
    except ClusterError:
        assert not is_valid(document)
    else:
        assert is_valid(document)
        assert config.num_processes == 1


@settings(quick, max_examples=200)
@given(valid_documents(), st.data())
def test_text_that_lost_or_changed_a_letter_is_refused_or_is_another_valid_document(document: Any, data: st.DataObject):
    text = json.dumps(document)
    at = data.draw(st.integers(0, len(text) - 1))
    instead = data.draw(st.one_of(st.just(""), st.characters(codec="utf-8")))
    changed = text[:at] + instead + text[at + 1 :]
    try:
        config = read(changed)
    except ClusterError:
        return
    theirs = json.loads(changed)  # Such as another host's name.
    assert read(json.dumps(theirs)) == config
    assert set(theirs["cluster"]) == set(config.spec.jobs)


@settings(quick, max_examples=200)
@given(st.text(min_size=1).filter(lambda text: text.strip()))
def test_text_that_is_no_json_is_refused(text: str):
    try:
        empty = json.loads(text) == {}
    except ValueError:
        empty = False
    if not empty:
        with pytest.raises(ClusterError, match=r"^TF_CONFIG"):
            read(text)


@pytest.mark.parametrize(
    "text",
    [
        *("[" * 100_000, "9" * 5000, '{"cluster": {}, "cluster": {}}', "{'cluster': {}}", '{"task": NaN}', "\ud800"),
        *('{"cluster": {"worker": ["a:1", "b:1"],}}', "\x00", '"worker"', "true", "[]", "0", "null"),
    ],
)
def test_known_traps_are_refused(text: str):
    with pytest.raises(ClusterError, match=r"^TF_CONFIG"):
        read(text)
