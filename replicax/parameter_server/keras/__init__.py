"""`Model.fit`, `evaluate` and `predict` under a `ParameterServerStrategy`.

`loops.py` has the loops, `data.py` what workers and the coordinator read, and `running_steps.py` the few steps that are
scheduled ahead.
"""
