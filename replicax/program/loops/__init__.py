"""Loops and branches whose bodies read and assign variables: `rx.lax.scan`, `rx.lax.cond` and the like."""
