"""`replicax template` as the pages write it: each command there prints what its tool reads."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from replicax.cli.app import app

GUIDES = Path(__file__).parents[2] / "docs" / "guides"
TEXT = "".join((GUIDES / f"{page}.md").read_text() for page in ("real-clusters", "multi-host"))
COMMANDS = re.findall(r"^replicax (template .*?) > (\S+)(?: +#.*)?$", TEXT, re.MULTILINE)
KINDS = {"kubernetes": ["Service", "Secret", "Job"], "jobset": ["Secret", "JobSet"], "kuberay": ["RayJob"]}


@pytest.mark.parametrize(("command", "name"), COMMANDS, ids=[command.split()[1] for command, _ in COMMANDS])
def test_commands_of_the_page(command: str, name: str):
    arguments = shlex.split(command)
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    if name.endswith(".sh"):
        subprocess.run(["bash", "-n"], input=done.output, text=True, check=True, timeout=30)
    else:
        manifests = list(yaml.safe_load_all(done.output))
        kinds = KINDS.get(arguments[1])
        assert kinds is None or [each["kind"] for each in manifests] == kinds


@pytest.mark.parametrize("kind", [*KINDS, "compose"])
def test_each_kind_of_manifest(kind: str):
    done = CliRunner().invoke(app, ["template", kind, "--workers", "3", "--image", "me/i", "train.py", "--epochs", "3"])
    assert done.exit_code == 0, done.output
    manifests = list(yaml.safe_load_all(done.output))
    assert len(manifests[0]["services"]) == 3 if kind == "compose" else [m["kind"] for m in manifests] == KINDS[kind]


def test_a_job_of_vertex_has_its_chief_in_the_first_pool():
    done = CliRunner().invoke(app, ["template", "vertex", "--workers", "4", "--image", "me/i", "train.py", "--x", "$1"])
    first, second = yaml.safe_load(done.output)["workerPoolSpecs"]
    assert (first["replicaCount"], second["replicaCount"]) == (1, 3)
    assert first["containerSpec"]["command"] + first["containerSpec"]["args"] == ["python", "train.py", "--x", "$1"]
    assert "acceleratorType" not in first["machineSpec"]


def test_the_pages_have_a_command_for_each_template():
    assert {command.split()[1] for command, _ in COMMANDS} == {*KINDS, "compose", "gce", "slurm", "vertex"}
