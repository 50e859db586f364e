"""Embedding tables that are sharded by rows, over devices or over parameter servers."""
