"""What `tests/children/sitecustomize.py` does in the processes that tests start."""

from __future__ import annotations

import subprocess
import sys


def test_keras_finds_no_scikit_learn_and_a_program_does():
    code = """
import sys, keras
hidden = [name for name in ("sklearn", "matplotlib") if name in sys.modules]
import sklearn, matplotlib
print(hidden, sklearn.__name__, matplotlib.__name__)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "[] sklearn matplotlib\n", done.stderr
