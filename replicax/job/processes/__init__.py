"""One process of a job: its task, the first code in it, its output, and what ends it."""
