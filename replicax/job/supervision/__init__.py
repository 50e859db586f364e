"""Policies of a running job: which failure came first, whether the others bear it, and whether the job starts again."""
