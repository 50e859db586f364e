"""`Model.fit`, `evaluate` and `predict` under a `ParameterServerStrategy`.

`loops.py` has the loops, `data.py` what workers and the coordinator read, and `loops.py` the few steps that are
scheduled ahead.
"""
