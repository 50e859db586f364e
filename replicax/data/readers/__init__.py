"""Readers of files: each returns `Rows`, in one line of the user's script.

A reader is a source of one of the two kinds in `row_plans.py`, and nothing more: `Rows` shuffles, maps and batches,
`row_reading.py` deals rows to workers, and `position.py` knows where the training is.
"""
