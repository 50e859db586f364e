"""Compiles a scheduled function into the programs that workers and servers run.

`traced_step.py` traces the function (with placeholders from `recording.py`) and splits it, `placing.py` chooses servers
for its variables, and `exported_programs.py` exports the halves: `worker_half.py` and, for each server,
`server_half.py`. `tables.py` finds variables of which a step reads a few rows only, and `row_wise.py` evaluates an
update on some rows of a variable. No file here talks to an actor.
"""
