"""`replicax migrate`: files and folders, diffs, exit codes, and files that are left alone."""

import os
import stat

import pytest
from typer.testing import CliRunner

from replicax.cli.app import app

CONVERTIBLE = "import tensorflow as tf\n\nstrategy = tf.distribute.MirroredStrategy()\n"
CONVERTED = "import replicax as rx\n\nstrategy = rx.MirroredStrategy()\n"
BY_HAND = CONVERTIBLE + "x = tf.something_new(1)\n"


def run(*arguments):
    return CliRunner().invoke(app, ["migrate", *map(str, arguments)])


def test_without_an_option_it_prints_and_changes_nothing(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(CONVERTIBLE)
    result = run(script)
    assert result.exit_code == 0
    assert "-strategy = tf.distribute.MirroredStrategy()\n+strategy = rx.MirroredStrategy()\n" in result.output
    assert f"{script}: would be converted\n" in result.output
    assert script.read_text() == CONVERTIBLE


def test_write_replaces_the_file_and_keeps_its_mode(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(CONVERTIBLE)
    script.chmod(0o755)
    assert run("--write", script).exit_code == 0
    assert script.read_text() == CONVERTED
    assert stat.S_IMODE(script.stat().st_mode) == 0o755
    assert os.listdir(tmp_path) == ["train.py"]
    again = run("--write", script)
    assert (again.exit_code, again.output) == (0, f"{script}: nothing to convert\n")


def test_hand_edits_are_listed_and_are_exit_code_1(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(BY_HAND)
    result = run("--write", script)
    assert result.exit_code == 1
    assert f"{script}:4: edit: tf.something_new: replicax does not know what becomes of it: " in result.output
    assert result.output.endswith("converted; 1 place to edit by hand\n")
    assert "# replicax: tf.something_new" in script.read_text()
    once = script.read_text()
    assert run("--write", script).exit_code == 1
    assert script.read_text() == once


def test_a_diff_can_be_given_to_patch(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(BY_HAND)
    result = run("--diff", script)
    assert result.stdout.startswith(f"--- a/{script}\n+++ b/{script}\n@@")
    assert "to edit by hand" not in result.stdout
    assert "to edit by hand" in result.stderr


def test_a_folder_without_what_is_hidden(tmp_path):
    for name in ("a.py", "inner/b.py", ".venv/c.py", "venv/d.py", "notes.txt"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(CONVERTIBLE)
    assert run("--write", tmp_path).exit_code == 0
    converted = [path for path in tmp_path.rglob("*.*") if path.is_file() and path.read_text() == CONVERTED]
    assert {path.name for path in converted} == {"a.py", "b.py"}


def test_a_file_that_cannot_be_parsed_is_exit_code_2_and_the_others_are_converted(tmp_path):
    (tmp_path / "a.py").write_text("import tensorflow\nprint 'x'\n")
    (tmp_path / "b.py").write_text(CONVERTIBLE)
    result = run("--write", tmp_path)
    assert result.exit_code == 2
    assert "is no Python 3 that can be parsed" in result.stderr
    assert (tmp_path / "b.py").read_text() == CONVERTED


@pytest.mark.parametrize(
    ("name", "says"),
    [("train.ipynb", "jupyter nbconvert --to script"), ("missing.py", "There is no file or folder")],
)
def test_no_script(tmp_path, name, says):
    if name.endswith("ipynb"):
        (tmp_path / name).write_text("{}")
    result = run(tmp_path / name)
    assert result.exit_code == 2
    assert says in result.stderr


def test_encodings(tmp_path):
    script = tmp_path / "train.py"
    script.write_bytes(b"# -*- coding: latin-1 -*-\r\n# na\xefve\r\n" + CONVERTIBLE.replace("\n", "\r\n").encode())
    assert run("--write", script).exit_code == 0
    expected = b"# -*- coding: latin-1 -*-\r\n# na\xefve\r\n" + CONVERTED.replace("\n", "\r\n").encode()
    assert script.read_bytes() == expected
    script.write_bytes(b"# na\xefve\n" + CONVERTIBLE.encode())
    result = run("--write", script)
    assert result.exit_code == 2
    assert "cannot be decoded" in result.stderr


def test_write_and_diff_exclude_each_other(tmp_path):
    assert run("--write", "--diff", tmp_path).exit_code == 2
