"""Loops and branches whose bodies read and assign variables: `rx.scan`, `rx.cond` and the like."""
