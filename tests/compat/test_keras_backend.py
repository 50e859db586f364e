"""Which backend Keras gets; each case in a process of its own, since Keras decides when it is imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import keras

from replicax.compat.keras_backend import choose_jax_for_keras


def said(script, tmp_path, **environ):
    """What a script prints (both streams), where the user's file of settings asks for NumPy."""
    (tmp_path / "keras.json").write_text(json.dumps({"backend": "numpy"}))
    base = {name: value for name, value in os.environ.items() if name != "KERAS_BACKEND"}
    environment = {**base, "KERAS_HOME": str(tmp_path), **environ}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    return done.stdout + done.stderr


SCOPE = """
try:
    with rx.MirroredStrategy().scope():
        pass
except rx.errors.ProgramError as error:
    print("ERROR", error)
else:
    print("OPENED", keras.backend.backend())
"""


def test_importing_replicax_first_gives_jax_whatever_the_file_says(tmp_path):
    assert "OPENED jax" in said("import replicax as rx, keras" + SCOPE, tmp_path)


def test_keras_first_is_warned_of_and_an_error_in_a_scope_with_cause_and_cure(tmp_path):
    output = said("import keras, replicax as rx" + SCOPE, tmp_path)
    raised = output.partition("ERROR ")[2]
    assert "UserWarning: Keras runs on the 'numpy' backend" in output
    assert f"{tmp_path}/keras.json" in raised
    assert "replicax needs 'jax'. Set KERAS_BACKEND=jax, or import replicax before Keras" in raised
    assert "StopIteration" not in output


def test_what_the_user_has_chosen_stays_and_is_named(tmp_path):
    output = said("import replicax as rx, keras" + SCOPE, tmp_path, KERAS_BACKEND="numpy")
    assert "ERROR Keras runs on the 'numpy' backend, because the environment variable KERAS_BACKEND says so" in output


def test_an_empty_variable_counts_as_none(monkeypatch):
    monkeypatch.delitem(sys.modules, "keras")
    for environ in ({}, {"KERAS_BACKEND": ""}):
        choose_jax_for_keras(environ)
        assert environ == {"KERAS_BACKEND": "jax"}


def test_with_jax_nothing_is_said(recwarn):
    assert keras.backend.backend() == "jax"
    choose_jax_for_keras({})
    assert not recwarn
