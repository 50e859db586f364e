"""Which worker runs which step when, and what follows from what workers and servers answer."""
