"""`replicax run` and `replicax template`: what is wrong with the options is told in one paragraph."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from replicax.cli.app import app


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run"], "replicax run: No script is named."),
        (["run", "--workers", "2"], "replicax run: No script is named."),
        (["run", "absent.py"], "replicax run: There is no file 'absent.py' in "),
        (["run", "-m", "absent"], "replicax run: There is no module 'absent' in "),
        (["run", "--workers", "0", "train.py"], "replicax run: --workers must be a whole number of at least 1, got 0."),
        (["run", "--workers", "4:2", "train.py"], "replicax run: --workers 4:2 is not a range"),
        (["run", "--workers", "x", "train.py"], "replicax run: --workers must be a number such as 4, or a range"),
        (
            ["run", "--workers", "10000000", "train.py"],
            "replicax run: 10,000,000 processes take 976,562 GiB at the least",
        ),
        (["run", "--devices-per-worker", "0", "train.py"], "replicax run: --devices-per-worker must be"),
        (["run", "--log-dir", "train.py/logs", "train.py"], "replicax run: The folder for the logs cannot be made: "),
        (["run", "--grace", "nan", "train.py"], "replicax run: --grace must be a number of seconds"),
        (["template", "slurm"], "replicax template: No script is named."),
        (["template", "kubernetes", "--name", "My_Job", "train.py"], "replicax template: --name must be a name"),
        (["template", "kubernetes", "--image", "a b", "train.py"], "replicax template: --image must be"),
        (["template", "kubernetes", "train.py"], "replicax template: --image must name a container image"),
        (["template", "kubernetes", "--cpus", "0", "train.py"], "replicax template: the number of CPUs must be"),
        (["template", "slurm", "--time", "soon", "train.py"], "replicax template: --time must be minutes, HH:MM:SS"),
        (["template", "slurm", "--mem", "x", "train.py"], "replicax template: The memory must be a size such as 32G"),
        (["template", "slurm", "--gpus", "-1", "train.py"], "replicax template: --gpus must be at least 0, got -1."),
    ],
)
def test_mistakes(arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2
    assert done.output.startswith(message)
    assert done.output.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


@pytest.mark.parametrize(
    ("arguments", "given"),
    [
        (["--workers", "2", "--epochs", "3", "--on=x"], "--workers, --on=x"),
        (["--epochs", "3"], None),
        (["--", "--workers", "2"], None),
    ],
)
def test_options_after_the_script_are_the_scripts_and_it_is_told(
    arguments: list[str], given: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.chdir(tmp_path)
    told, _, refused = (
        CliRunner().invoke(app, ["run", "absent.py", *arguments]).output.rpartition("replicax run: There")
    )
    assert refused.startswith(" is no file 'absent.py'")
    assert told.startswith(f"replicax run: absent.py gets {given}, which stands after its name." if given else "")
    assert bool(told) == bool(given)


def test_templates_are_printed_ready_for_use():
    done = CliRunner().invoke(
        app, ["template", "kubernetes", "--image", "me/i", "--workers", "3", "train.py", "--workers", "x"]
    )
    service, secret, job = yaml.safe_load_all(done.output)
    assert (service["kind"], secret["kind"], job["spec"]["completions"]) == ("Service", "Secret", 3)
    assert "exec python train.py --workers x" in job["spec"]["template"]["spec"]["containers"][0]["args"][0]
    again = CliRunner().invoke(app, ["template", "kubernetes", "--image", "me/i", "train.py"])
    assert list(yaml.safe_load_all(again.output))[1]["stringData"] != secret["stringData"]
    done = CliRunner().invoke(app, ["template", "slurm", "train.py"])
    subprocess.run(["bash", "-n"], input=done.output, text=True, check=True)
