"""Traced programs as data.

`jaxprs.py` says what programs consist of, and marks values in them. A pass over a program is an `Interpreter`
(`interpreter.py`): rules by the names of primitives (`compat/jax_names.py`), and `bind` for all others. Dependencies
are a `Graph` (`graph.py`), through calls a `ProgramScope` (`scopes.py`). `moving.py` copies equations as they are.
"""
