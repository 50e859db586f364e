"""What a release needs: one version, URLs that agree, workflows whose commands exist, files that GitHub can read."""

from __future__ import annotations

import ast
import importlib.metadata
import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

import replicax as rx

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SITE = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), Loader=yaml.BaseLoader)
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
TAG = os.environ.get("REPLICAX_TAG", "")


def test_the_version_stands_in_one_place():
    assert PROJECT["dynamic"] == ["readme", "version"]
    found = [
        path
        for path in (ROOT / "replicax").rglob("*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__version__"
    ]
    assert found == [ROOT / "replicax" / "version.py"]
    assert rx.__version__ == importlib.metadata.version("replicax")


def test_the_citation_is_of_this_version():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert str(cited["version"]) == rx.__version__
    assert cited["license"] == PROJECT["license"]
    assert cited["repository-code"] == PROJECT["urls"]["Repository"]
    assert cited["url"] == PROJECT["urls"]["Documentation"]
    # What the format requires: https://github.com/citation-file-format/citation-file-format
    assert {"cff-version", "message", "title", "authors"} <= set(cited)


def test_the_changelog_is_ready():
    sections = re.findall(r"^## \[([^\]]+)\]", CHANGELOG, re.MULTILINE)
    assert sections[0] == "Unreleased"
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", section) for section in sections[1:])


@pytest.mark.skipif(not TAG, reason="REPLICAX_TAG names the tag of a release")
def test_the_tag_is_of_this_version_and_the_changelog_tells_of_it():
    assert f"v{rx.__version__}" == TAG
    assert re.search(rf"^## \[{re.escape(rx.__version__)}\] - \d{{4}}-\d\d-\d\d$", CHANGELOG, re.MULTILINE)


def test_the_site_and_the_package_have_the_same_addresses():
    assert SITE["repo_url"] == PROJECT["urls"]["Repository"]
    assert SITE["site_url"] == PROJECT["urls"]["Documentation"]
    for text in (ROOT / "SECURITY.md", *FORMS):
        for address in re.findall(r"https://(?:github\.com/replicax|replicax\.github\.io)\S*", text.read_text("utf-8")):
            assert address.startswith((PROJECT["urls"]["Repository"], PROJECT["urls"]["Documentation"]))


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_calls_targets_that_make_has_and_files_that_exist(workflow: Path):
    document = yaml.load(workflow.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)
    assert document["name"] == workflow.stem
    assert document["permissions"] == {"contents": "read"}
    commands = [step["run"] for job in document["jobs"].values() for step in job["steps"] if "run" in step]
    assert commands or workflow.stem == "docs"
    for job in document["jobs"].values():
        assert int(job["timeout-minutes"]) <= 180
    for command in commands:
        if target := re.match(r"make ([\w-]+)", command):
            assert re.search(rf"^{target[1]}:.*##", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
        for path in re.findall(r"[\w/]+\.py", command):
            assert (ROOT / path).is_file(), f"{workflow.name}: {command}"


@pytest.mark.parametrize("form", FORMS, ids=lambda path: path.stem)
def test_an_issue_form_is_what_github_reads(form: Path):
    document = yaml.safe_load(form.read_text(encoding="utf-8"))
    if form.stem == "config":
        assert {"name", "url", "about"} == set(document["contact_links"][0])
        return
    assert document["name"]
    assert document["description"]
    ids = [each["id"] for each in document["body"] if each["type"] != "markdown"]
    assert len(ids) == len(set(ids)) > 0
    assert all(each["attributes"].get("label") or each["attributes"].get("value") for each in document["body"])


@pytest.mark.parametrize("target", ["demo", "test", "test-all", "lint", "docs-check", "dist"])
def test_a_bare_machine_can_run_what_make_prints(target):
    printed = subprocess.run(
        ["make", "--dry-run", "--always-make", "--no-print-directory", target],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith("MAKE")},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    assert "pip --disable-pip-version-check --quiet install" in printed
    subprocess.run(["sh", "-n"], input=printed, text=True, check=True, timeout=60)
