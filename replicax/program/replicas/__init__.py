"""The function that runs once per replica: its trace, its program in `jax.shard_map`, and its sums with the others."""
