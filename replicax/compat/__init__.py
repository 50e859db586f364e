"""The doors to other libraries: what is private or unstable in JAX, Keras and Ray is used here only.

Supported: JAX 0.10, 0.11 and 0.12. Everything else in replicax uses what these libraries document. Each private name
has a comment that says what is used instead when it goes, and a guard test under `tests/compat`. Nothing is imported
here: each file is imported by whoever has the library already.
"""
