"""`Model.fit`, `evaluate` and `predict` under a `ParameterServerStrategy`."""
