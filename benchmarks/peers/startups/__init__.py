"""Programs that import what they need, make one training step, and print the time of day at its end."""
