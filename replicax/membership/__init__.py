"""Which workers take part in a collective, where workers may come and go."""
