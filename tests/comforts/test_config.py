"""`replicax run --config` and `replicax config`, used as in their page."""

import os
import pty
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import replicax.cli.job as job_module
from replicax.cli.app import app
from replicax.errors import ExitCode


@pytest.fixture
def started(monkeypatch):
    """The jobs that would have been started."""
    jobs = []
    monkeypatch.setattr(job_module, "launch", lambda options: jobs.append(options) or 0)
    return jobs


def call(*arguments, given=None):
    return CliRunner().invoke(app, [*map(str, arguments)], input=given)


def job_file(tmp_path, text):
    path = tmp_path / "job.yaml"
    path.write_text(text)
    return path


def test_every_option_may_stand_in_the_file(tmp_path, started):
    path = job_file(
        tmp_path,
        "script: train.py\narguments: [--epochs, 3]\nworkers: 2:3\ndevices-per-worker: 4\nevaluator: true\n"
        "restarts: 1\nlog-dir: logs\ngrace: 12.5\n",
    )
    assert call("run", "--config", path).exit_code == 0
    (job,) = started
    assert (job.script, job.arguments, job.workers, job.min_workers) == ("train.py", ("--epochs", "3"), 3, 2)
    assert (job.devices_per_worker, job.evaluator, job.restarts) == (4, True, 1)
    assert (str(job.log_dir), job.grace) == ("logs", 12.5)


def test_all_options_are_known(tmp_path):
    """Each one that `replicax run --help` names may stand in a job file: its value is checked, not its name."""
    shown = call("run", "--help").output
    for name in ("on", "hosts", "env", "start-timeout", "islands", "elastic", "restarts", "grace"):
        assert f"--{name}" in shown
        found = call("run", "--config", job_file(tmp_path, f"{name}: [[wrong]]"))
        assert found.exit_code == ExitCode.USAGE
        assert "is no option" not in found.output


def test_the_command_line_counts_before_the_environment_and_this_before_the_file(tmp_path, started, monkeypatch):
    path = job_file(tmp_path, "script: a.py\narguments: [x]\nworkers: 2\ndevices-per-worker: 2\n")
    call("run", "--config", path, "--workers", "5")
    call("run", "--config", path, "b.py", "--own", "1")
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "3")
    call("run", "--config", path)
    assert [job.workers for job in started] == [5, 2, 2]
    assert [(job.script, job.arguments) for job in started] == [
        ("a.py", ("x",)),
        ("b.py", ("--own", "1")),
        ("a.py", ("x",)),
    ]
    assert [job.devices_per_worker for job in started] == [2, 2, 3]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("script: a.py\nworkers: many", "many"),
        ("script: a.py\nrestarts: x", "restarts"),
        ("workrs: 3", "Do you mean workers"),
        ("arguments: [a]", "has arguments and no script"),
        ("elastic: 8:2\nscript: a.py", "smaller number first"),
    ],
)
def test_mistakes_in_it_are_those_of_the_command_line(tmp_path, started, text, words):
    found = call("run", "--config", job_file(tmp_path, text))
    assert found.exit_code == ExitCode.USAGE
    assert words in found.output
    assert started == []


def test_config_writes_what_it_was_told(tmp_path, started, monkeypatch):
    path = tmp_path / "folder" / "job.yaml"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    sets = ["script=train.py", "elastic=2:8", "arguments=--epochs", "arguments=3"]
    found = call("config", path, "--no-ask", *(word for each in sets for word in ("--set", each)))
    assert found.exit_code == 0, found.output
    assert call("run", "--config", path).exit_code == 0
    (job,) = started
    assert (job.script, job.arguments, job.elastic) == ("train.py", ("--epochs", "3"), (2, 8))


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (["script=a.py", "workers=x"], "x"),
        (["script=a.py", "restarts=x"], "restarts"),
        (["script=a.py", "workrs=3"], "workers"),
        (["script=a.py", "workrs=3"], "job.yaml, line 3: workrs is no option"),
        (["script"], "NAME=VALUE"),
        (["workers=2"], "No script is named"),
        (["script=none.py"], "There is no file 'none.py'"),
        (["script=none", "module=true"], "There is no module 'none'"),
        (["script=a.py", "on=auto", "env=NOT_SET_HERE"], "the NAME of a variable that is set here"),
        (["script=a.py", "env=A=1"], "--env is for workers on other machines"),
        (["script=a.py", "islands=true", "on=auto"], "leave out --on"),
        (["script=a.py", "join=a:1"], "--elastic MIN:MAX --on HEAD:PORT"),
        (["script=a.py", "on=auto", "hosts=a:1"], "--on and --hosts"),
    ],
)
def test_config_writes_nothing_that_run_would_refuse(tmp_path, monkeypatch, sets, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").touch()
    found = call("config", "job.yaml", "--no-ask", *(word for each in sets for word in ("--set", each)))
    assert found.exit_code == ExitCode.USAGE
    assert words in found.output
    assert ".part" not in found.output
    assert [path.name for path in tmp_path.iterdir()] == ["a.py"]


def test_config_replaces_nothing_unasked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").touch()
    path = job_file(tmp_path, "mine")
    assert call("config", path, "--no-ask", "--set", "script=a.py").exit_code == ExitCode.USAGE
    assert path.read_text() == "mine"
    assert call("config", path, "--no-ask", "--force", "--set", "script=a.py").exit_code == 0
    assert "script: a.py" in path.read_text()


def test_config_without_a_terminal_says_what_to_do(tmp_path):
    found = call("config", tmp_path / "job.yaml", given="")
    assert found.exit_code == ExitCode.USAGE
    assert "--no-ask" in found.output


@pytest.mark.multiprocess
def test_config_asks_at_a_terminal(tmp_path):
    path, (leader, follower) = tmp_path / "job.yaml", pty.openpty()
    command = [sys.executable, "-m", "replicax", "config", str(path)]
    (tmp_path / "my script.py").touch()
    process = subprocess.Popen(
        command, cwd=tmp_path, stdin=follower, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        os.write(leader, b"my script.py\n3\n\n2:3\n\n\n")
        said, _ = process.communicate(timeout=120)
    finally:
        process.kill()
        os.close(leader)
        os.close(follower)
    assert process.returncode == 0, said
    assert path.read_text().splitlines()[1:] == ["script: my script.py", "workers: '3'", "elastic: '2:3'"]
    assert "[2]" in said  # the usual answer
