"""Job files: read with all values as texts, and what is wrong in them said with the line."""

import pytest

from replicax.cli.job_file import read_job_file, written_job_file
from replicax.errors import LaunchError

OPTIONS = {"script": False, "arguments": False, "module": True, "workers": False, "elastic": False, "on": False}
OPTIONS |= {"hosts": False, "env": False, "devices-per-worker": False, "evaluator": True}


def read(tmp_path, text):
    path = tmp_path / "job.yaml"
    path.write_text(text, encoding="utf-8")
    return read_job_file(path, OPTIONS)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("# nothing\n", {}),
        ("workers: 4", {"workers": "4"}),
        ("elastic: 2:8", {"elastic": "2:8"}),  # YAML's older version has it as a time, 128.
        ("on: auto", {"on": "auto"}),  # and this as `true: auto`
        ("--workers: 010", {"workers": "010"}),
        ("evaluator: yes", {"evaluator": True}),
        ("evaluator: false", {"evaluator": False}),
        ("workers:", {}),
        ("workers: ~", {}),
        ("script: ''", {"script": ""}),
        ("hosts: [a:1, b:2]", {"hosts": ["a:1", "b:2"]}),
        ("hosts: a:1,b:2", {"hosts": ["a:1", "b:2"]}),
        ("env: {A: 1, B: yes}", {"env": ["A=1", "B=yes"]}),
        ("env: [A=1, HOME]", {"env": ["A=1", "HOME"]}),
        ("arguments: [--rate, 1e-3]", {"arguments": ["--rate", "1e-3"]}),
        ("arguments: one", {"arguments": ["one"]}),
    ],
)
def test_values_are_what_the_command_line_would_have(tmp_path, text, expected):
    assert read(tmp_path, text) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("script: a.py\nworkrs: 3", r"job\.yaml, line 2: workrs is no option of replicax run\. Do you mean workers"),
        ("devices_per_worker: 3", "Do you mean devices-per-worker"),
        ("xyz: 3", "There are arguments, devices-per-worker"),
        ("workers: 1\nworkers: 2", "line 2: workers stands there twice"),
        ("workers: [1, 2]", "line 1: workers takes one value"),
        ("evaluator: perhaps", "evaluator is true or false, got 'perhaps'"),
        ("arguments: [[1]]", "arguments takes texts"),
        ("arguments: {a: 1}", "arguments takes texts"),
        ("- workers", "a job file has lines such as"),
        ("workers: [", "is no YAML"),
        ("[a]: 1", "is no option"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(tmp_path, text, words):
    with pytest.raises(LaunchError, match=words):
        read(tmp_path, text)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(LaunchError, match="cannot be read"):
        read_job_file(tmp_path / "no.yaml", OPTIONS)


def test_a_written_file_is_read_as_it_was_meant(tmp_path):
    settings = {"script": "a b.py", "workers": "2:4", "evaluator": True, "arguments": ["--x", "1", "no", "потеря: #"]}
    assert read(tmp_path, written_job_file(settings)) == settings
