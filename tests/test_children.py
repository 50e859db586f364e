"""What `tests/children/sitecustomize.py` does in the processes that tests start."""

from __future__ import annotations

import subprocess
import sys


def test_keras_finds_no_scikit_learn_and_a_program_does():
    code = """
import sys, keras
hidden = [name for name in ("sklearn", "matplotlib", "psutil", "requests") if name in sys.modules]
import sklearn, psutil
print(hidden, sklearn.__name__, psutil.__name__)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "[] sklearn psutil\n", done.stderr
